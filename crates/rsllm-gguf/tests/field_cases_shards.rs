//! Field cases of models in several files: each one by its case number in the project's list of field cases.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::PathBuf;

use rsllm_gguf::{Cause, Gguf, OpenOptions, ShardLimit, ShardOptions};

mod common;
use common::{Folder, writer};

#[test]
fn gf_08_any_shard_finds_its_siblings_and_a_missing_one_is_named() {
    let folder = Folder::new("gf-08");
    let paths = write_shards(&folder, 3);
    for path in &paths {
        for mmap in [true, false] {
            let model = Gguf::open_with(path, OpenOptions::default().with_mmap(mmap)).unwrap();
            assert_eq!(model.files(), paths);
            assert_eq!(model.tensors().len(), 3);
            assert_eq!(model.metadata().architecture().unwrap(), "llama");
            for (index, tensor) in model.tensors().iter().enumerate() {
                assert_eq!(model.tensor_bytes(tensor), [index as u8; 40]);
                assert_eq!(tensor.file_index(), index);
            }
        }
    }
    std::fs::remove_file(&paths[2]).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::ShardMissing { no: 3, count: 3, path, .. } if *path == paths[2]),
        "{error}"
    );
    assert!(
        error.to_string().contains("-00003-of-00003.gguf"),
        "{error}"
    );
}

#[test]
fn gf_08_shards_that_do_not_belong_together_are_refused() {
    let folder = Folder::new("gf-08-mixed");
    let paths = write_shards(&folder, 3);
    let parts: Vec<Vec<u8>> = paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();

    std::fs::write(&paths[1], &parts[2]).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(
        matches!(
            error.cause(),
            Cause::ShardNumber {
                expected: 1,
                found: 2
            }
        ),
        "{error}"
    );

    std::fs::write(&paths[1], &parts[1]).unwrap();
    let error = Gguf::open_shards(&paths[..2], OpenOptions::default()).unwrap_err();
    assert!(
        matches!(
            error.cause(),
            Cause::ShardCount {
                expected: 2,
                found: 3
            }
        ),
        "{error}"
    );

    // The second shard again as the third: the same tensor twice.
    let renumbered = replace(
        &parts[1],
        &1_u16.to_le_bytes(),
        &2_u16.to_le_bytes(),
        b"split.no",
    );
    std::fs::write(&paths[2], renumbered).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::DuplicateTensorInShards { tensor, .. } if tensor == "blk.1.w"),
        "{error}"
    );
    std::fs::write(&paths[2], &parts[2]).unwrap();

    let fewer = replace(
        &parts[0],
        &3_i32.to_le_bytes(),
        &4_i32.to_le_bytes(),
        b"split.tensors.count",
    );
    std::fs::write(&paths[0], fewer).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(
        matches!(
            error.cause(),
            Cause::ShardTensorCount {
                expected: 4,
                found: 3
            }
        ),
        "{error}"
    );
}

#[test]
fn gf_08_a_renamed_shard_says_what_its_name_should_end_in() {
    let folder = Folder::new("gf-08-renamed");
    let paths = write_shards(&folder, 3);
    let renamed = folder.path("model.gguf");
    std::fs::rename(&paths[1], &renamed).unwrap();
    let error = Gguf::open(&renamed).unwrap_err();
    assert!(
        matches!(error.cause(), Cause::ShardName { expected, .. } if expected == "-00002-of-00003.gguf"),
        "{error}"
    );
    // Names of their own can be given in order.
    let listed = [paths[0].clone(), renamed, paths[2].clone()];
    assert_eq!(
        Gguf::open_shards(&listed, OpenOptions::default())
            .unwrap()
            .tensors()
            .len(),
        3
    );
}

#[test]
fn gf_09_shards_joined_with_cat_are_named_as_such() {
    let folder = Folder::new("gf-09");
    for first_without_tensors in [false, true] {
        let paths = write_shards_with(&folder, 2, first_without_tensors);
        let joined: Vec<u8> = paths
            .iter()
            .flat_map(|path| std::fs::read(path).unwrap())
            .collect();
        // Under a name of its own, and under that of the first shard.
        for path in [folder.path("m.gguf"), paths[0].clone()] {
            std::fs::write(&path, &joined).unwrap();
            let error = Gguf::open(&path).unwrap_err();
            assert!(
                matches!(error.cause(), Cause::JoinedShards { .. }),
                "{error}"
            );
            assert!(
                error.to_string().contains("cannot be concatenated"),
                "{error}"
            );
        }
    }
}

fn write_shards(folder: &Folder, count: usize) -> Vec<PathBuf> {
    write_shards_with(folder, count, false)
}

fn write_shards_with(
    folder: &Folder,
    n_tensors: usize,
    first_without_tensors: bool,
) -> Vec<PathBuf> {
    let options = ShardOptions {
        limit: ShardLimit::Tensors(1.try_into().unwrap()),
        first_without_tensors,
    };
    let mut number = 0;
    let source = |_: &rsllm_gguf::TensorSpec, out: &mut dyn std::io::Write| {
        number += 1;
        out.write_all(&[number - 1; 40])
    };
    writer(n_tensors)
        .write_shards(folder.path("m"), options, source)
        .unwrap()
}

/// `bytes` with the value after `key` (and its type) changed.
fn replace(bytes: &[u8], old: &[u8], new: &[u8], key: &[u8]) -> Vec<u8> {
    let at = bytes
        .windows(key.len())
        .position(|window| window == key)
        .unwrap()
        + key.len()
        + 4;
    assert_eq!(&bytes[at..at + old.len()], old);
    [&bytes[..at], new, &bytes[at + new.len()..]].concat()
}
