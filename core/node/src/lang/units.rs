//! Durations and sizes: their units, and the shortest exact spelling of a value.

/// Nanoseconds in one of each duration unit, largest first.
const DURATIONS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Bytes in one of each size unit, largest first.
const SIZES: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("bytes", 1),
];

fn factor(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|(_, factor)| *factor)
}

fn print(units: &[(&str, u64)], value: u64) -> String {
    let smallest = units.last().map_or("", |(name, _)| name);
    let (name, factor) = units
        .iter()
        .find(|(_, factor)| value != 0 && value.is_multiple_of(*factor))
        .copied()
        .unwrap_or((smallest, 1));
    format!("{}{name}", value / factor)
}

/// Nanoseconds in one `unit`, when it is a duration unit.
pub fn duration_factor(unit: &str) -> Option<u64> {
    factor(&DURATIONS, unit)
}

/// Bytes in one `unit`, when it is a size unit.
pub fn size_factor(unit: &str) -> Option<u64> {
    factor(&SIZES, unit)
}

/// `90000000000` nanoseconds are `90s`.
pub fn print_duration(nanos: u64) -> String {
    print(&DURATIONS, nanos)
}

/// `1048576` bytes are `1MiB`.
pub fn print_size(bytes: u64) -> String {
    print(&SIZES, bytes)
}
