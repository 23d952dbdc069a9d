//! What a file is that is not GGUF: the download page, pointer or other model format people open by mistake.
//!
//! Only the first bytes and the name are looked at, and only to word an error; nothing is ever accepted here.

use std::fmt;
use std::path::Path;

/// A guess at what a file without the GGUF magic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A web page, usually a login or error page saved as the model.
    Html,
    /// The three-line text file that git keeps in place of a large file.
    GitLfsPointer,
    /// JSON, usually an error answer of a download API.
    Json,
    /// A zip archive; PyTorch checkpoints are zip files too.
    Zip,
    /// A PyTorch checkpoint.
    PyTorch,
    /// A safetensors file.
    Safetensors,
    /// A gzip, zstd, xz or 7z archive.
    Compressed,
    /// A tar archive.
    Tar,
    /// A model of GGUF's predecessors: GGML, GGMF, GGJT, GGLA.
    Ggml,
    /// Nothing but zero bytes at the beginning: space reserved by a download that never wrote it.
    Zeros,
    /// The letters of the magic reversed.
    ReversedMagic,
    /// None of these.
    Unknown,
}

impl Foreign {
    /// Looks at the beginning of a file; `head` may be the whole file.
    pub(crate) fn detect(head: &[u8]) -> Self {
        let text: Vec<u8> = head
            .iter()
            .copied()
            .skip_while(|b| b.is_ascii_whitespace() || b"\xef\xbb\xbf".contains(b))
            .take(TEXT_BYTES)
            .map(|b| b.to_ascii_lowercase())
            .collect();
        let begins = |magic: &[u8]| head.starts_with(magic);
        if [&b"<!doctype"[..], b"<html", b"<head", b"<?xml", b"<!--"]
            .iter()
            .any(|tag| text.starts_with(tag))
        {
            Self::Html
        } else if begins(b"version https://git-lfs") {
            Self::GitLfsPointer
        } else if begins(b"PK\x03\x04") || begins(b"PK\x05\x06") {
            // torch.save writes an uncompressed zip whose first member is `<name>/data.pkl`.
            if contains(&head[..head.len().min(64)], b"data.pkl") {
                Self::PyTorch
            } else {
                Self::Zip
            }
        } else if begins(b"\x80\x02") || begins(b"\x80\x03") || begins(b"\x80\x04") {
            Self::PyTorch
        } else if is_safetensors(head) {
            Self::Safetensors
        } else if begins(b"\x1f\x8b")
            || begins(b"\x28\xb5\x2f\xfd")
            || begins(b"\xfd7zXZ")
            || begins(b"7z\xbc\xaf")
        {
            Self::Compressed
        } else if head.get(257..262) == Some(b"ustar") {
            Self::Tar
        } else if [
            &b"lmgg"[..],
            b"fmgg",
            b"tjgg",
            b"algg",
            b"ggml",
            b"ggmf",
            b"ggjt",
            b"ggla",
        ]
        .iter()
        .any(|m| begins(m))
        {
            Self::Ggml
        } else if begins(b"FUGG") {
            Self::ReversedMagic
        } else if text.starts_with(b"{") || text.starts_with(b"[") {
            Self::Json
        } else if !head.is_empty() && head.iter().take(ZERO_BYTES).all(|&b| b == 0) {
            Self::Zeros
        } else {
            Self::Unknown
        }
    }

    pub(crate) fn is_unknown(self) -> bool {
        self == Self::Unknown
    }

    pub(crate) fn hint(self) -> Option<String> {
        Some(
            match self {
                Self::Html | Self::Json => {
                    "the download saved a page or an error instead of the file; fetch it again"
                }
                Self::GitLfsPointer => "run `git lfs pull`, or download the file itself",
                Self::Zip | Self::Compressed | Self::Tar => "unpack it first",
                Self::PyTorch | Self::Safetensors | Self::Ggml => "convert the model to GGUF first",
                Self::Zeros => {
                    "the download reserved the space but did not fill it; fetch the file again"
                }
                Self::ReversedMagic => "convert the model again for little-endian machines",
                Self::Unknown => return None,
            }
            .into(),
        )
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Html => "it is an HTML page",
            Self::GitLfsPointer => "it is a git LFS pointer",
            Self::Json => "it looks like JSON",
            Self::Zip => "it is a zip archive",
            Self::PyTorch => "it is a PyTorch checkpoint",
            Self::Safetensors => "it is a safetensors file",
            Self::Compressed => "it is a compressed archive",
            Self::Tar => "it is a tar archive",
            Self::Ggml => "it is a GGML file, the format before GGUF",
            Self::Zeros => "it begins with zero bytes",
            Self::ReversedMagic => "its magic is byte-reversed",
            Self::Unknown => "it does not begin with `GGUF`",
        })
    }
}

/// The number in a name like `m.gguf.part2of3`, `m.gguf-split-b`, `m.gguf.part01`, `m.gguf.002`: a file cut by bytes.
///
/// Shards made for GGUF (`m-00002-of-00003.gguf`) are not such parts.
pub(crate) fn byte_part(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (_, tail) = name.rsplit_once(".gguf")?;
    let tail = tail.trim_start_matches(['.', '-', '_']);
    let number = ["split-", "part-", "part_", "part", "split", ""]
        .iter()
        .find_map(|prefix| tail.strip_prefix(prefix))?;
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    let is_letters = tail != number && !number.is_empty() && number.len() <= 2;
    (is_number || is_letters).then(|| number.to_string())
}

/// A safetensors file is a u64 header length and a JSON object.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    u64::from_le_bytes(*length) < SAFETENSORS_MAX_HEADER && rest.starts_with(b"{\"")
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

/// How far to look for text; a page begins with its tag.
const TEXT_BYTES: usize = 16;
/// A file that begins with this many zero bytes was never written.
const ZERO_BYTES: usize = 64;
/// The limit of the safetensors format itself: 100 MB.
const SAFETENSORS_MAX_HEADER: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_formats_are_told_apart() {
        let cases: [(&[u8], Foreign); 14] = [
            (b"\n <!DOCTYPE html><html>", Foreign::Html),
            (b"<HTML><body>Access denied", Foreign::Html),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", Foreign::GitLfsPointer),
            (b"{\"error\":\"Repository not found\"}", Foreign::Json),
            (b"PK\x03\x04\x14\x00", Foreign::Zip),
            (b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\x12\0archive/data.pkl", Foreign::PyTorch),
            (b"\x80\x02}q\x00", Foreign::PyTorch),
            (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", Foreign::Safetensors),
            (b"\x1f\x8b\x08", Foreign::Compressed),
            (b"lmgg\x01\0\0\0", Foreign::Ggml),
            (b"tjgg\x03\0\0\0", Foreign::Ggml),
            (&[0; 100], Foreign::Zeros),
            (b"FUGG\0\0\0\x03", Foreign::ReversedMagic),
            (b"\x93NUMPY", Foreign::Unknown),
        ];
        for (head, expected) in cases {
            assert_eq!(Foreign::detect(head), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn byte_parts_are_recognised_by_name_and_shards_are_not() {
        for name in [
            "m.gguf.part1of2",
            "m.gguf.part00",
            "m.Q6_K.gguf-part-a",
            "m.gguf-split-b",
            "m.gguf.001",
            "m.gguf.2",
        ] {
            assert!(byte_part(Path::new(name)).is_some(), "{name}");
        }
        for name in [
            "m.gguf",
            "m-00001-of-00002.gguf",
            "m.gguf.tmp",
            "m.gguf.incomplete",
            "m.bin",
            "sha256-1234",
        ] {
            assert_eq!(byte_part(Path::new(name)), None, "{name}");
        }
    }
}
