use super::*;

fn prepared(schema: &Value) -> Value {
    prepare(&schema.to_string()).unwrap().schema
}

#[test]
fn what_is_not_enforced_to_the_letter_is_said_once() {
    let choice = json!({"oneOf": [{"type": "null"}, {"type": "string"}]});
    let schema = json!({"properties": {"a": choice, "b": {"oneOf": [{"type": "null"}]}}});
    let warnings = prepare(&schema.to_string()).unwrap().warnings;
    assert_eq!(warnings, ["oneOf at #/properties/a is enforced as anyOf"]);
    let many: Vec<_> = (0..20).map(|_| choice.clone()).collect();
    let warnings = prepare(&json!({"prefixItems": many}).to_string())
        .unwrap()
        .warnings;
    assert_eq!(warnings.len(), MAX_WARNINGS);
}

/// What became of the root.
fn root(schema: &Value) -> Value {
    prepared(schema)["$defs"]["0"].clone()
}

fn refusal(schema: &Value) -> ConstraintError {
    prepare(&schema.to_string()).unwrap_err()
}

#[test]
fn objects_with_properties_are_closed_unless_they_say_otherwise() {
    let properties = json!({"b": {"type": "string"}, "a": {"properties": {"x": true}}});
    let closed = root(&json!({"properties": properties}));
    assert_eq!(closed["type"], "object");
    assert_eq!(closed["additionalProperties"], false);
    assert_eq!(closed["properties"]["a"]["additionalProperties"], false);
    let names: Vec<&String> = closed["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["b", "a"]);
    for said in [json!(true), json!({"type": "integer"})] {
        let open = root(&json!({"properties": properties, "additionalProperties": said}));
        assert_eq!(open["additionalProperties"], said);
    }
    assert!(
        root(&json!({"type": "object"}))
            .get("additionalProperties")
            .is_none()
    );
}

#[test]
fn a_required_property_without_a_schema_may_be_anything() {
    let schema = root(&json!({"properties": {"a": true}, "required": ["a", "b"]}));
    assert_eq!(schema["properties"], json!({"a": true, "b": true}));
}

#[test]
fn combinations_are_closed_as_a_whole() {
    let schema = prepared(&json!({
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "integer"}}}],
        "$defs": {"Base": {"properties": {"a": true}, "required": ["a"]}},
    }));
    let parts = schema["$defs"]["0"]["allOf"].as_array().unwrap();
    assert_eq!(
        parts[1],
        json!({"properties": {"a": true, "b": true}, "additionalProperties": false})
    );
    assert!(parts[0]["allOf"][1].get("additionalProperties").is_none());
    assert!(schema["$defs"]["1"].get("additionalProperties").is_none());
}

#[test]
fn references_are_numbered_and_may_be_recursive() {
    let schema = prepared(&json!({
        "type": "object",
        "properties": {
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "odd": {"$ref": "#/definitions/a~1b%20c"},
        },
        "definitions": {"a/b c": {"enum": [1, 2]}},
    }));
    let properties = &schema["$defs"]["0"]["properties"];
    assert_eq!(properties["next"]["anyOf"][0]["$ref"], "#/$defs/0");
    assert_eq!(properties["odd"]["$ref"], "#/$defs/1");
    assert_eq!(schema["$defs"]["1"], json!({"enum": [1, 2]}));
}

#[test]
fn errors_name_keyword_and_place() {
    for (schema, path, keyword) in [
        (json!({"not": {}}), "#", "not"),
        (
            json!({"properties": {"a/b": {"if": {}}}}),
            "#/properties/a~1b",
            "if",
        ),
        (
            json!({"items": {"uniqueItems": true}}),
            "#/items",
            "uniqueItems",
        ),
        (
            json!({"anyOf": [{}, {"contains": {}}]}),
            "#/anyOf/1",
            "contains",
        ),
    ] {
        assert_eq!(
            refusal(&schema),
            ConstraintError::UnsupportedKeyword {
                path: path.to_owned(),
                keyword: keyword.to_owned()
            }
        );
    }
    for (schema, text) in [
        (
            json!({"type": "text"}),
            "`type` at # must be one or a list of",
        ),
        (
            json!({"properties": []}),
            "`properties` at # must be an object",
        ),
        (json!({"anyOf": []}), "at least one"),
        (json!({"enum": []}), "at least one"),
        (json!({"minLength": -1}), "`minLength` at #"),
        (json!({"maxItems": 1e300}), "`maxItems` at #"),
        (
            json!({"properties": {"x": 3}}),
            "`schema` at #/properties/x",
        ),
        (json!({"const": 9_007_199_254_740_993_u64}), "2^53"),
        (json!({"format": "regex"}), "\"regex\" at #"),
        (json!({"pattern": "(?=x)"}), "at #/pattern"),
        (json!({"$ref": "http://example.com/x"}), "leads nowhere"),
        (json!({"$ref": "#/$defs/x"}), "leads nowhere"),
        (json!({"$ref": "#"}), "leads back to itself"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            "itself",
        ),
        (json!(false), "nothing can satisfy"),
        (json!({"anyOf": [{"$ref": "#"}]}), "nothing can satisfy"),
        (
            json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "nothing can satisfy",
        ),
        (
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            "nothing can satisfy",
        ),
        (json!(3), "must be an object"),
    ] {
        let error = refusal(&schema).to_string();
        assert!(error.contains(text), "{schema}: {error}");
    }
    let error = prepare("{\"a\": ").unwrap_err();
    assert!(
        matches!(error, ConstraintError::SchemaSyntax { .. }),
        "{error}"
    );
}

#[test]
fn what_says_nothing_is_left_out() {
    let schema = root(&json!({
        "title": "T", "description": "d", "x-more": 1, "nonsense": {}, "default": 3, "examples": [], "deprecated": true,
        "type": "array", "uniqueItems": false, "unevaluatedItems": true,
        "items": {"type": "string", "format": "password", "contentEncoding": "base64"},
    }));
    assert_eq!(
        schema,
        json!({"type": "array", "items": {"type": "string"}})
    );
}

#[test]
fn older_spellings_are_understood() {
    assert_eq!(
        root(&json!({"items": [{"type": "null"}], "additionalItems": false})),
        json!({"prefixItems": [{"type": "null"}], "items": false, "type": "array"})
    );
    assert_eq!(
        root(&json!({"type": "string", "nullable": true})),
        json!({"type": ["string", "null"]})
    );
    assert_eq!(
        root(&json!({"oneOf": [{"type": "null"}], "anyOf": [{"type": "string"}]})),
        json!({"anyOf": [{"type": "null"}], "allOf": [{"anyOf": [{"type": "string"}]}]})
    );
}

#[test]
fn sizes_are_limited() {
    let deep = format!("{}{}", "{\"items\":".repeat(200), "}".repeat(200));
    assert!(matches!(
        prepare(&deep),
        Err(ConstraintError::SchemaSyntax { .. })
    ));
    let huge = json!({"enum": (0..30_000).collect::<Vec<_>>()}).to_string();
    assert!(matches!(
        prepare(&huge),
        Err(ConstraintError::TooLarge { .. })
    ));
    let long = format!("{{\"title\": \"{}\"}}", "x".repeat(1 << 20));
    assert!(matches!(
        prepare(&long),
        Err(ConstraintError::TooLarge { .. })
    ));
}
