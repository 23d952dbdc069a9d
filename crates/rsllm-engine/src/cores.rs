//! How many threads a model gets unless told: one a physical core that this process may use. Two threads on one core share the
//! units that the kernels saturate, so siblings only add overhead.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;

/// Physical cores among the processors this process may use, at most what its CPU quota allows; at least 1.
pub fn usable_cores() -> usize {
    // Counts logical processors, and knows affinity and quotas of control groups.
    let logical = thread::available_parallelism().map_or(1, usize::from);
    let physical = if cfg!(target_os = "linux") {
        physical_cores_below(Path::new("/"))
    } else {
        None
    };
    physical
        .map_or(logical, |physical| physical.min(logical))
        .max(1)
}

fn physical_cores_below(root: &Path) -> Option<usize> {
    let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for cpu in parse_list(allowed.trim())? {
        let topology = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        // Siblings have the same list, so distinct lists are cores.
        cores.insert(
            fs::read_to_string(topology.join("thread_siblings_list"))
                .ok()?
                .trim()
                .to_owned(),
        );
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Numbers of a list such as `0-3,8,10-11`. `None` if it is malformed or absurdly long.
fn parse_list(list: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last.checked_sub(first)? > MAX_PROCESSORS {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Beyond any machine; a bound on the work.
const MAX_PROCESSORS: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        for bad in ["", "a", "3-1", "0-4294967295", "1,,2"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn siblings_count_once() {
        let root = std::env::temp_dir().join(format!("rsllm-cores-{}", std::process::id()));
        for (cpu, siblings) in [(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3"), (4, "4")] {
            let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
        }
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(
            root.join("proc/self/status"),
            "Name:\tx\nCpus_allowed_list:\t0-3\n",
        )
        .unwrap();
        let cores = physical_cores_below(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(cores, Some(2));
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(usable_cores() >= 1);
    }
}
