//! The Backend trait, the parameter structs of its operations, and the suite each backend must pass.
