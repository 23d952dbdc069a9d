//! Model families as data, weight binding, one generic decoder and the paged KV cache.
