//! JSON schemas, prepared for llguidance: checked keyword by keyword, so that an error names the keyword and its place, and
//! rewritten where callers mean more, or less, than the letter says.
//!
//! - **Closed objects.** Where `properties` are given and nothing is said about others, there are no others, as llama.cpp and
//!   Ollama have it. Parts of an `allOf`, or of any combination, are closed together and not one by one, since each would
//!   forbid what the others require; their definitions exist twice then, closed and open.
//! - **Missing types.** A schema with `properties` is an object, one with `items` an array, and so on. By the letter it
//!   would allow a bare number, too.
//! - **References** within the schema (`#`, `#/any/where`), also recursive ones, become definitions `#/$defs/<number>`.
//! - **`oneOf`** is enforced as `anyOf`.
//! - **White space** is bounded, as in llama.cpp: nothing, a space, or one or two line feeds with at most 20 blanks.
//!
//! Keywords that restrict and cannot be enforced are errors. Annotations, and keywords that the standard does not know, are
//! left out, as the standard says.

mod check;
mod finite;
mod keywords;
mod names;
mod place;
mod rewrite;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use self::check::{check_depth, check_integers, check_type, count_values};
use self::keywords::{FORMATS, KNOWN_FORMATS, UNCHECKED_FORMATS, UNSUPPORTED};
use self::names::PropertyNames;
use self::place::{Place, escaped, pointer_of};
use self::rewrite::{
    add_alternatives, close, infer_type, is_combination, says_what_else_there_may_be,
};
use super::error::ConstraintError;
use super::regex::check_search;

/// The schema as llguidance is to enforce it.
pub(super) fn prepare(text: &str) -> Result<Prepared, ConstraintError> {
    if text.len() > MAX_SCHEMA_BYTES {
        return Err(too_large("bytes", text.len(), MAX_SCHEMA_BYTES));
    }
    let schema: Value =
        serde_json::from_str(text).map_err(|error| ConstraintError::SchemaSyntax {
            reason: error.to_string(),
        })?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err(ConstraintError::SchemaValue {
            path: "#".to_owned(),
            keyword: "schema".to_owned(),
            expected: "an object",
        });
    }
    let mut preparer = Preparer {
        root: &schema,
        definitions: HashMap::new(),
        pending: Vec::new(),
        leads_on: HashSet::new(),
        n_nodes: 0,
        warnings: Vec::new(),
    };
    let root = preparer.definition("", Openness::Closed)?;
    let mut definitions: Vec<Value> = Vec::new();
    while let Some(pending) = preparer.pending.pop() {
        let definition = preparer.schema(pending.schema, &pending.path, pending.openness)?;
        if definitions.len() <= pending.number {
            definitions.resize(pending.number + 1, Value::Null);
        }
        definitions[pending.number] = definition;
    }
    check_depth(&definitions)?;
    finite::check(&definitions, root)?;
    let definitions: Map<String, Value> = (0_usize..)
        .map(|number| number.to_string())
        .zip(definitions)
        .collect();
    let schema = json!({
        "x-guidance": {
            "coerce_one_of": true,
            "whitespace_flexible": true,
            "whitespace_pattern": WHITE_SPACE,
        },
        "$ref": reference(root),
        "$defs": definitions,
    });
    Ok(Prepared {
        schema,
        warnings: preparer.warnings,
    })
}

/// A schema as it is enforced, and where that is not what it says.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) schema: Value,
    pub(super) warnings: Vec<String>,
}

/// More say nothing new.
const MAX_WARNINGS: usize = 8;

/// Whether objects without a word about other properties have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Openness {
    Closed,
    /// A part of a combination, which is closed as a whole.
    Open,
}

/// A definition that was referred to.
struct Pending<'s> {
    number: usize,
    schema: &'s Value,
    path: String,
    openness: Openness,
}

struct Preparer<'s> {
    root: &'s Value,
    /// Number of each definition, by JSON pointer.
    definitions: HashMap<(String, Openness), usize>,
    pending: Vec<Pending<'s>>,
    /// Pointers from which references lead to something else than a reference.
    leads_on: HashSet<String>,
    n_nodes: usize,
    warnings: Vec<String>,
}

impl<'s> Preparer<'s> {
    /// A definition may be prepared twice, closed and open, and a schema have very many.
    fn warn_of_one_of(&mut self, path: &str) {
        let warning = format!("oneOf at {path} is enforced as anyOf");
        if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The number of the definition at `pointer`; it is prepared later.
    fn definition(&mut self, pointer: &str, openness: Openness) -> Result<usize, ConstraintError> {
        let number = self.definitions.len();
        let known = self
            .definitions
            .entry((pointer.to_owned(), openness))
            .or_insert(number);
        if *known == number {
            let schema = self
                .root
                .pointer(pointer)
                .expect("whoever asks has looked it up");
            self.pending.push(Pending {
                number,
                schema,
                path: format!("#{pointer}"),
                openness,
            });
        }
        let known = *known;
        if number >= MAX_DEFINITIONS {
            return Err(too_large("definitions", number, MAX_DEFINITIONS));
        }
        Ok(known)
    }

    fn schema(
        &mut self,
        schema: &'s Value,
        path: &str,
        openness: Openness,
    ) -> Result<Value, ConstraintError> {
        self.count(1)?;
        let keywords = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(keywords) => keywords,
            _ => {
                return Err(ConstraintError::SchemaValue {
                    path: path.to_owned(),
                    keyword: "schema".to_owned(),
                    expected: "an object, true or false",
                });
            }
        };
        let is_combination = is_combination(keywords);
        let parts = if is_combination {
            Openness::Open
        } else {
            openness
        };
        let mut out = Map::new();
        for (keyword, value) in keywords {
            let place = Place {
                path,
                keyword,
                value,
            };
            self.keyword(place, keywords, parts, &mut out)?;
        }
        infer_type(&mut out);
        if keywords.get("nullable") == Some(&Value::Bool(true))
            && let Some(kind @ Value::String(_)) = out.get_mut("type")
        {
            *kind = json!([kind.take(), "null"]);
        }
        if openness == Openness::Open || says_what_else_there_may_be(keywords) {
            return Ok(Value::Object(out));
        }
        if !is_combination {
            close(&mut out);
            return Ok(Value::Object(out));
        }
        let mut names = PropertyNames::new(self.root);
        names.gather(schema);
        Ok(match names.finish() {
            Some(names) => {
                let names: Map<String, Value> =
                    names.into_iter().map(|name| (name, true.into())).collect();
                json!({"allOf": [out, {"properties": names, "additionalProperties": false}]})
            }
            None => Value::Object(out),
        })
    }

    /// Checks one keyword and writes what becomes of it.
    fn keyword(
        &mut self,
        place: Place<'_, 's>,
        keywords: &'s Map<String, Value>,
        parts: Openness,
        out: &mut Map<String, Value>,
    ) -> Result<(), ConstraintError> {
        let Place {
            path,
            keyword,
            value,
        } = place;
        match keyword {
            "type" => check_type(place)?,
            "enum" => {
                let values = place.array()?;
                if values.is_empty() {
                    return Err(place.expected("an array of at least one value"));
                }
                self.count(count_values(value))?;
                check_integers(value, path, keyword)?;
            }
            "const" => {
                self.count(count_values(value))?;
                check_integers(value, path, keyword)?;
            }
            "properties" => return self.members(place, out),
            "patternProperties" => {
                for pattern in place.object()?.keys() {
                    check_search(pattern, &format!("{path}/patternProperties"))?;
                }
                return self.members(place, out);
            }
            "additionalProperties" => {
                let schema = self.schema(value, &format!("{path}/{keyword}"), Openness::Closed)?;
                out.insert(keyword.to_owned(), schema);
                return Ok(());
            }
            "items" if !value.is_array() => {
                let schema = self.schema(value, &format!("{path}/items"), Openness::Closed)?;
                out.insert("items".to_owned(), schema);
                return Ok(());
            }
            // The older spelling of `prefixItems`, with its own word for what follows.
            "items" | "prefixItems" => {
                let schemas = self.list(place, Openness::Closed)?;
                out.insert("prefixItems".to_owned(), schemas);
                return Ok(());
            }
            "additionalItems" => {
                if keywords.get("items").is_some_and(Value::is_array) {
                    let schema =
                        self.schema(value, &format!("{path}/{keyword}"), Openness::Closed)?;
                    out.insert("items".to_owned(), schema);
                }
                return Ok(());
            }
            "allOf" | "anyOf" | "oneOf" => {
                let schemas = self.list(place, parts)?;
                if schemas.as_array().is_some_and(Vec::is_empty) {
                    return Err(place.expected("an array of at least one schema"));
                }
                if keyword == "oneOf" && schemas.as_array().is_some_and(|all| all.len() > 1) {
                    self.warn_of_one_of(path);
                }
                add_alternatives(keyword, schemas, out);
                return Ok(());
            }
            "$ref" => {
                let pointer = place.resolve(self.root)?;
                self.check_progress(&pointer, place)?;
                let number = self.definition(&pointer, parts)?;
                out.insert("$ref".to_owned(), reference(number).into());
                return Ok(());
            }
            "required" => {
                let names = place.array()?;
                if !names.iter().all(Value::is_string) {
                    return Err(place.expected("an array of strings"));
                }
                self.count(names.len())?;
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => {
                out.insert(keyword.to_owned(), place.count()?.into());
                return Ok(());
            }
            "minimum" | "maximum" | "multipleOf" if !value.is_number() => {
                return Err(place.expected("a number"));
            }
            "exclusiveMinimum" | "exclusiveMaximum"
                if !value.is_number() && !value.is_boolean() =>
            {
                return Err(place.expected("a number"));
            }
            "minimum" | "maximum" | "multipleOf" | "exclusiveMinimum" | "exclusiveMaximum" => {}
            "pattern" => check_search(place.str()?, &format!("{path}/pattern"))?,
            "format" => {
                let format = place.str()?;
                if UNCHECKED_FORMATS.contains(&format) {
                    return Ok(());
                }
                if !FORMATS.contains(&format) {
                    return Err(ConstraintError::UnsupportedFormat {
                        path: path.to_owned(),
                        format: format.to_owned(),
                        known: KNOWN_FORMATS,
                    });
                }
            }
            // What they say when false, or when objects are closed anyway, is no restriction.
            "uniqueItems" | "unevaluatedItems" | "unevaluatedProperties"
                if value == &Value::Bool(keyword == "unevaluatedItems")
                    || keyword == "unevaluatedProperties" && value.is_boolean() =>
            {
                return Ok(());
            }
            _ if UNSUPPORTED.contains(&keyword) => {
                return Err(ConstraintError::UnsupportedKeyword {
                    path: path.to_owned(),
                    keyword: keyword.to_owned(),
                });
            }
            _ => return Ok(()),
        }
        out.insert(keyword.to_owned(), value.clone());
        Ok(())
    }

    /// A map of schemas.
    fn members(
        &mut self,
        place: Place<'_, 's>,
        out: &mut Map<String, Value>,
    ) -> Result<(), ConstraintError> {
        let (path, keyword) = (place.path, place.keyword);
        let n_members = place.object()?.len();
        if n_members > MAX_PROPERTIES {
            return Err(too_large(
                "properties of an object",
                n_members,
                MAX_PROPERTIES,
            ));
        }
        let mut members = Map::new();
        for (name, schema) in place.object()? {
            let member = format!("{path}/{keyword}/{}", escaped(name));
            members.insert(
                name.clone(),
                self.schema(schema, &member, Openness::Closed)?,
            );
        }
        out.insert(keyword.to_owned(), members.into());
        Ok(())
    }

    /// A list of schemas.
    fn list(&mut self, place: Place<'_, 's>, openness: Openness) -> Result<Value, ConstraintError> {
        let (path, keyword) = (place.path, place.keyword);
        place
            .array()?
            .iter()
            .enumerate()
            .map(|(i, schema)| self.schema(schema, &format!("{path}/{keyword}/{i}"), openness))
            .collect()
    }

    /// An error when following references from `pointer` alone leads round in a circle.
    fn check_progress(
        &mut self,
        pointer: &str,
        place: Place<'_, '_>,
    ) -> Result<(), ConstraintError> {
        let mut path = HashSet::new();
        let mut next = Some(pointer.to_owned());
        while let Some(pointer) = next.filter(|pointer| !self.leads_on.contains(pointer)) {
            if path.contains(&pointer) {
                return Err(ConstraintError::CircularReference {
                    path: place.path.to_owned(),
                    reference: place.str()?.to_owned(),
                });
            }
            next = self
                .root
                .pointer(&pointer)
                .and_then(|schema| schema.get("$ref"))
                .and_then(Value::as_str)
                .and_then(|reference| pointer_of(self.root, reference));
            path.insert(pointer);
        }
        self.leads_on.extend(path);
        Ok(())
    }

    fn count(&mut self, n: usize) -> Result<(), ConstraintError> {
        self.n_nodes += n;
        if self.n_nodes > MAX_NODES {
            return Err(too_large("values", self.n_nodes, MAX_NODES));
        }
        Ok(())
    }
}

fn reference(number: usize) -> String {
    format!("#/$defs/{number}")
}

fn too_large(what: &'static str, found: usize, limit: usize) -> ConstraintError {
    ConstraintError::TooLarge {
        kind: "schema",
        what,
        found: found as u64,
        limit: limit as u64,
    }
}

/// Bytes of a schema.
const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// Schemas and constants in all of it. What the library compiles them to is limited as well.
const MAX_NODES: usize = 20_000;
/// Properties of one object: the work for the names of others grows with their square.
const MAX_PROPERTIES: usize = 1000;
/// Places that references lead to.
const MAX_DEFINITIONS: usize = 2000;
/// Levels of all definitions together, which bounds the library's recursion.
const MAX_DEPTH: usize = 8000;
/// Doubles tell integers apart up to here.
const MAX_EXACT_INTEGER: u64 = 1 << 53;
const WHITE_SPACE: &str = r"\x20|\n{1,2}[\x20\t]{0,20}";

#[cfg(test)]
mod tests;
