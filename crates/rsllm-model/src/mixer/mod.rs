//! Mixers: how the tokens of a sequence see each other. One file a mechanism.

pub(crate) mod attention;
