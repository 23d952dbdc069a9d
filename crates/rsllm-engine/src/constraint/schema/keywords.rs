//! The keywords and names that are known, by what they are about.

pub(super) const TYPES: &[&str] = &[
    "object", "array", "string", "number", "integer", "boolean", "null",
];
pub(super) const OBJECT_KEYWORDS: &[&str] = &[
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
];
pub(super) const ARRAY_KEYWORDS: &[&str] = &["items", "prefixItems", "minItems", "maxItems"];
pub(super) const STRING_KEYWORDS: &[&str] = &["minLength", "maxLength", "pattern", "format"];
pub(super) const NUMBER_KEYWORDS: &[&str] = &[
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Keywords of the standard, of any draft, that restrict and are not enforced.
pub(super) const UNSUPPORTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
/// Formats that are enforced.
pub(super) const FORMATS: &[&str] = &[
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
pub(super) const KNOWN_FORMATS: &str =
    "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid and uri";
/// Formats that any text, or any number, has.
pub(super) const UNCHECKED_FORMATS: &[&str] = &[
    "password",
    "binary",
    "path",
    "file-path",
    "directory-path",
    "float",
    "double",
    "int32",
    "int64",
];
