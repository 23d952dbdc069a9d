//! Regular expressions: checked before llguidance sees them, so that an error names the place, and rid of the anchors that a
//! match of the whole text makes superfluous.

use regex_syntax::hir::{Hir, HirKind, Look};

use super::error::{ConstraintError, shortened};

/// Bytes of a regular expression.
pub(super) const MAX_REGEX_BYTES: usize = 64 << 10;

/// The expression for a match of the whole text. `path` is where it stands.
pub(super) fn whole_text(pattern: &str, path: &str) -> Result<String, ConstraintError> {
    let hir = parse(pattern, path)?;
    if hir.properties().look_set().is_empty() {
        return Ok(pattern.to_owned());
    }
    let bare = without_outer_anchors(hir, true, true);
    if !bare.properties().look_set().is_empty() {
        return Err(error(
            pattern,
            path,
            "anchors and word boundaries inside it are not supported",
        ));
    }
    Ok(bare.to_string())
}

/// Checks an expression that is searched for, as `pattern` of a JSON schema is.
pub(super) fn check_search(pattern: &str, path: &str) -> Result<(), ConstraintError> {
    let hir = parse(pattern, path)?;
    let bare = without_outer_anchors(hir, true, true);
    if bare.properties().look_set().is_empty() {
        Ok(())
    } else {
        Err(error(
            pattern,
            path,
            "anchors and word boundaries inside it are not supported",
        ))
    }
}

fn parse(pattern: &str, path: &str) -> Result<Hir, ConstraintError> {
    if pattern.len() > MAX_REGEX_BYTES {
        return Err(ConstraintError::TooLarge {
            kind: "regex",
            what: "bytes",
            found: pattern.len() as u64,
            limit: MAX_REGEX_BYTES as u64,
        });
    }
    regex_syntax::ParserBuilder::new()
        .nest_limit(MAX_NESTING)
        .build()
        .parse(pattern)
        .map_err(|cause| match cause {
            regex_syntax::Error::Parse(cause) => error(pattern, path, &cause.kind().to_string()),
            regex_syntax::Error::Translate(cause) => {
                error(pattern, path, &cause.kind().to_string())
            }
            other => error(pattern, path, &other.to_string()),
        })
}

fn error(pattern: &str, path: &str, reason: &str) -> ConstraintError {
    ConstraintError::Pattern {
        path: path.to_owned(),
        pattern: shortened(pattern, 200),
        reason: reason.to_owned(),
    }
}

/// `hir` without `^` where it can only stand at the beginning (`first`), and without `$` at the end (`last`).
fn without_outer_anchors(hir: Hir, first: bool, last: bool) -> Hir {
    match hir.into_kind() {
        HirKind::Look(Look::Start) if first => Hir::empty(),
        HirKind::Look(Look::End) if last => Hir::empty(),
        HirKind::Concat(parts) => {
            let end = parts.len();
            Hir::concat(
                parts
                    .into_iter()
                    .enumerate()
                    .map(|(i, part)| {
                        without_outer_anchors(part, first && i == 0, last && i + 1 == end)
                    })
                    .collect(),
            )
        }
        HirKind::Alternation(parts) => Hir::alternation(
            parts
                .into_iter()
                .map(|part| without_outer_anchors(part, first, last))
                .collect(),
        ),
        HirKind::Capture(mut capture) => {
            let inner = std::mem::replace(&mut *capture.sub, Hir::empty());
            *capture.sub = without_outer_anchors(inner, first, last);
            Hir::capture(capture)
        }
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(repetition) => Hir::repetition(repetition),
    }
}

/// Nested groups of a regular expression. Every function that walks the expression recurses once a level.
const MAX_NESTING: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_anchors_go_and_inner_ones_are_refused() {
        for (pattern, expected) in [
            ("[0-9]+", "[0-9]+"),
            ("^[0-9]$", "[0-9]"),
            ("^(?:a|b)$", "[ab]"),
            ("^a$|^bc$", "(?:(?:a)|(?:bc))"),
            ("(^a)", "((?:a))"),
        ] {
            let bare = whole_text(pattern, "regex").unwrap();
            if pattern == bare {
                assert_eq!(bare, expected);
            }
            assert!(
                regex_syntax::parse(&bare)
                    .unwrap()
                    .properties()
                    .look_set()
                    .is_empty(),
                "{pattern} → {bare}"
            );
        }
        for pattern in ["a^b", r"\bword\b", "(?m)^a$", "a$b"] {
            assert!(
                matches!(
                    whole_text(pattern, "regex"),
                    Err(ConstraintError::Pattern { .. })
                ),
                "{pattern}"
            );
        }
    }

    #[test]
    fn what_is_no_regular_expression_is_named() {
        let deep = "(".repeat(100_000);
        for pattern in [
            "*",
            "{2}",
            "(?<=x)*",
            "[a",
            "(a",
            "a{3,1}",
            r"\p{Nothing}",
            &deep,
        ] {
            let error = whole_text(pattern, "regex").unwrap_err();
            assert!(
                matches!(
                    error,
                    ConstraintError::Pattern { .. } | ConstraintError::TooLarge { .. }
                ),
                "{error}"
            );
            assert!(error.to_string().len() < 600);
        }
    }

    #[test]
    fn superfluous_escapes_are_harmless() {
        assert!(check_search(r"^hello there indeed\!$", "#").is_ok());
    }
}
