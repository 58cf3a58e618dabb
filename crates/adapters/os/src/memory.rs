//! The memory available to this process.

use std::fs::read_to_string;
use std::path::Path;

/// The memory of the machine, or the lowest limit of the process's control groups if that is less,
/// in bytes. `None` if the system does not report it.
pub fn memory_bytes() -> Option<u64> {
    let machine = of_machine(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(
        limits(&groups, |path| read_to_string(Path::new("/sys/fs/cgroup").join(path)).ok())
            .fold(machine, u64::min),
    )
}

pub(crate) fn of_machine(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Limits of the process's control groups and all their ancestors, cgroup v1 and v2. A group
/// without a limit has `max` or a number above any memory size.
pub(crate) fn limits(
    groups: &str,
    read: impl Fn(&str) -> Option<String>,
) -> impl Iterator<Item = u64> {
    let places = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        match rest.split_once(':')? {
            ("", path) => Some(("", "memory.max", path)),
            (controllers, path)
                if controllers.split(',').any(|controller| controller == "memory") =>
            {
                Some(("memory", "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    let files = places.flat_map(|(root, file, path)| {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        ends.map(move |end| format!("{root}{}/{file}", &path[..end]))
            .map(|path| path.trim_start_matches('/').to_owned())
    });
    files.filter_map(move |file| read(&file)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn least(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let files: BTreeMap<_, _> = files.iter().copied().collect();
        limits(groups, |path| files.get(path).map(|text| text.to_string())).min()
    }

    #[test]
    fn the_least_of_all_groups_above_counts() {
        let files = [
            ("memory.max", "max\n"),
            ("a/memory.max", "1000\n"),
            ("a/b/memory.max", "2000\n"),
            ("a/c/memory.max", "10\n"),
        ];
        assert_eq!(least("0::/a/b\n", &files), Some(1000));
        assert_eq!(least("0::/\n", &files), None);
        assert_eq!(least("0::/\n", &[("memory.max", "512\n")]), Some(512));
        assert_eq!(least("", &files), None);
    }

    #[test]
    fn groups_of_the_first_version_have_limits_too() {
        let files = [
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/docker/memory.limit_in_bytes", "77\n"),
            ("memory.max", "1\n"),
        ];
        assert_eq!(least("5:cpu,cpuacct:/docker\n4:memory:/docker\n", &files), Some(77));
        assert_eq!(least("4:memory:/\n", &files), Some(9223372036854771712));
    }

    #[test]
    fn this_machine_has_memory() {
        assert_eq!(
            of_machine("MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
            Some(24_576_000 << 10)
        );
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
