//! How much memory a process may still take. The only operating-system-specific file of this crate: Linux answers from
//! `/proc/meminfo` and the control groups of the process, other systems are not asked and answer `None`.

use std::fs;
use std::path::Path;

/// Bytes that this process can still take without pushing others out: the kernel's estimate for the machine, or less where a
/// control group allows less. Memory that holds cached file pages counts as free. `None` where nobody can tell.
pub fn available_bytes() -> Option<u64> {
    if cfg!(target_os = "linux") {
        available_below(Path::new("/"))
    } else {
        None
    }
}

/// The same for a system whose files are below `root`.
fn available_below(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let machine = mem_available(&meminfo)?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let group = groups
        .lines()
        .filter_map(|line| available_in_group(root, line))
        .min();
    Some(group.map_or(machine, |group| group.min(machine)))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let value = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What a line `id:controllers:/path` of `/proc/self/cgroup` leaves; `None` when it sets no limit.
fn available_in_group(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let controllers = fields.next()?;
    let path = fields.next()?;
    let files = if controllers.is_empty() {
        GroupFiles {
            mount: "sys/fs/cgroup",
            limit: "memory.max",
            usage: "memory.current",
            cache: "inactive_file ",
        }
    } else if controllers.split(',').any(|name| name == "memory") {
        GroupFiles {
            mount: "sys/fs/cgroup/memory",
            limit: "memory.limit_in_bytes",
            usage: "memory.usage_in_bytes",
            cache: "total_inactive_file ",
        }
    } else {
        return None;
    };
    // A limit of any parent binds too. In a container the path may be that of the host and lead nowhere; then only the root of
    // the mount, which is the container's own group, answers.
    let mount = root.join(files.mount);
    let group = mount.join(path.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|folder| folder.starts_with(&mount))
        .filter_map(|folder| files.available(folder))
        .min()
}

/// Names of one version of control groups.
struct GroupFiles {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Line of `memory.stat` with the file pages that the kernel drops first.
    cache: &'static str,
}

impl GroupFiles {
    fn available(&self, folder: &Path) -> Option<u64> {
        // "max" is no number, hence no limit.
        let limit = read_number(&folder.join(self.limit))?;
        let usage = read_number(&folder.join(self.usage))?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.cache)?.trim().parse().ok())
            .unwrap_or(0);
        Some(limit.saturating_sub(usage.saturating_sub(cache)))
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const MEMINFO: &str = "MemTotal:  8000 kB\nMemFree:   100 kB\nMemAvailable:    4000 kB\n";

    /// A made-up system in a folder of its own, removed at the end.
    struct System(PathBuf);

    impl System {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("rsllm-memory-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_groups_the_machine_decides() {
        let system = System::new("plain", &[("proc/meminfo", MEMINFO)]);
        assert_eq!(available_below(&system.0), Some(4000 * 1024));
    }

    #[test]
    fn the_tightest_group_decides_and_file_cache_is_free() {
        let system = System::new(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/user/app\n"),
                ("sys/fs/cgroup/user/app/memory.max", "max\n"),
                ("sys/fs/cgroup/user/app/memory.current", "700000\n"),
                ("sys/fs/cgroup/user/memory.max", "1000000\n"),
                ("sys/fs/cgroup/user/memory.current", "800000\n"),
                (
                    "sys/fs/cgroup/user/memory.stat",
                    "anon 1\ninactive_file 300000\nfile 2\n",
                ),
            ],
        );
        assert_eq!(available_below(&system.0), Some(500_000));
    }

    #[test]
    fn the_first_version_of_groups_is_read_too() {
        let system = System::new(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                (
                    "proc/self/cgroup",
                    "5:cpu,cpuacct:/x\n4:memory:/host/path\n0::/\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n"),
            ],
        );
        assert_eq!(available_below(&system.0), Some(500_000));
    }

    #[test]
    fn nonsense_is_no_answer() {
        let system = System::new("odd", &[("proc/meminfo", "MemAvailable: many kB\n")]);
        assert_eq!(available_below(&system.0), None);
        assert_eq!(mem_available("MemAvailable: 99999999999999999999 kB"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_answers() {
        assert!(available_bytes().unwrap() > 0);
    }
}
