//! x
pub fn run(_data: &[u8]) {}
