//! The byte ↔ character map of GPT-2 vocabularies: token texts are printable, one character a byte.
//!
//! Bytes 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF stand for themselves; the other 68, in increasing order, are U+0100 and up.

/// The character that stands for `byte` in token texts.
pub(crate) const fn byte_to_char(byte: u8) -> char {
    BYTE_TO_CHAR[byte as usize]
}

/// The byte that `c` stands for, if it stands for one.
pub(crate) fn char_to_byte(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x143 => Some(SHIFTED[(code - 0x100) as usize]),
        _ => None,
    }
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that do not stand for themselves, in increasing order.
const SHIFTED: [u8; 68] = {
    let mut shifted = [0; 68];
    let mut n = 0;
    let mut byte = 0;
    while byte < 256 {
        if !stands_for_itself(byte as u8) {
            shifted[n] = byte as u8;
            n += 1;
        }
        byte += 1;
    }
    shifted
};

const BYTE_TO_CHAR: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut byte = 0;
    let mut n_shifted = 0;
    while byte < 256 {
        chars[byte] = if stands_for_itself(byte as u8) {
            byte as u8 as char
        } else {
            n_shifted += 1;
            match char::from_u32(0xFF + n_shifted) {
                Some(c) => c,
                None => panic!("code points up to U+0143 are characters"),
            }
        };
        byte += 1;
    }
    chars
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_is_one_to_one_and_matches_known_pairs() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(0xAD), 'Ń');
        assert_eq!(char_to_byte(' '), None);
        assert_eq!(char_to_byte('ń'), None);
    }
}
