#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nervix_fuzz::abi::run(data));
