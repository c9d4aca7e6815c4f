//! The text format of PostgreSQL's COPY.

/// Bytes that go to PostgreSQL in one message of a COPY, about.
pub(crate) const MESSAGE_BYTES: usize = 256 * 1024;

/// Appends a text to a line of a COPY.
pub(crate) fn push_text(line: &mut String, text: &str) {
    let mut plain = 0;
    for (at, special) in
        text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r'))
    {
        line.push_str(&text[plain..at]);
        line.push_str(match special {
            b'\\' => "\\\\",
            b'\t' => "\\t",
            b'\n' => "\\n",
            _ => "\\r",
        });
        plain = at + 1;
    }
    line.push_str(&text[plain..]);
}
