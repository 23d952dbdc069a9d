//! What must hold for any bytes whatever; shared by the property tests, the mutation test and the fuzz target.

use rsllm_gguf::{Gguf, GgufWriter};

/// Opens the bytes and touches all there is. Whatever they are, nothing may panic.
pub(crate) fn exercise(file: &[u8]) {
    match Gguf::from_bytes(file.to_vec(), "damaged.gguf") {
        Ok(model) => {
            let again = GgufWriter::copy_of(&model).map(|writer| writer.tensors().len());
            assert!(again.is_ok_and(|n_tensors| n_tensors == model.tensors().len()));
            for tensor in model.tensors() {
                assert_eq!(model.tensor_bytes(tensor).len(), tensor.n_bytes());
                assert!(tensor.n_elements() >= tensor.n_rows());
            }
            for (key, value) in model.metadata().iter() {
                assert_eq!(
                    model.metadata().get(key).unwrap().value_type(),
                    value.value_type()
                );
                assert!(!value.describe().is_empty());
            }
        }
        Err(error) => {
            let parts = [error.field(), error.expected(), error.found(), error.hint()];
            assert!(
                parts.iter().flatten().all(|part| !part.is_empty()),
                "{error:?}"
            );
        }
    }
}
