//! Execution references (E-1).
//!
//! Owns how a reference is made. Knows neither the time nor a source of randomness: both are handed in.

/// A UUIDv7 of this moment and these random bytes, in its usual spelling.
pub(crate) fn uuid_v7(unix_millis: u64, entropy: [u8; 10]) -> String {
    let [a, b, c, d, e, f, g, h, i, j] = entropy;
    let [_, _, t0, t1, t2, t3, t4, t5] = unix_millis.to_be_bytes();
    let version = 0x70 | (a & 0x0f);
    let variant = 0x80 | (c & 0x3f);
    format!(
        "{t0:02x}{t1:02x}{t2:02x}{t3:02x}-{t4:02x}{t5:02x}-{version:02x}{b:02x}-{variant:02x}{d:02x}-\
         {e:02x}{f:02x}{g:02x}{h:02x}{i:02x}{j:02x}"
    )
}

/// Whether a text is a UUIDv7 in that spelling.
pub(crate) fn is_uuid_v7(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            14 => byte == b'7',
            19 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: E-1
    #[test]
    fn is_a_version_7_uuid_of_its_time() {
        let text = uuid_v7(0x0123_4567_89ab, [0xff; 10]);
        assert_eq!(text, "01234567-89ab-7fff-bfff-ffffffffffff");
        assert!(is_uuid_v7(&text));
        assert!(!is_uuid_v7("01234567-89ab-4fff-bfff-ffffffffffff"));
        assert!(!is_uuid_v7("01234567-89ab-7fff-bfff-fffffffffff"));
        assert_eq!(uuid_v7(0, [0; 10]), "00000000-0000-7000-8000-000000000000");
    }
}
