//! Text format of PostgreSQL's COPY.

/// Approximate size of a COPY message, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 256 * 1024;

/// Appends escaped text to a line of COPY data.
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
