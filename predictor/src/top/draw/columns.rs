//! Columns of tables, and texts that are shortened. A number with missing digits is wrong, so a column is omitted rather than cut off.

use ratatui::text::Line;

/// A column of short texts: header, smallest width, and the smallest screen width at which it is shown.
pub(super) type Column = (&'static str, u16, u16);

/// Returns the columns that are shown on a screen of this width, with their widths. Each is as wide as its longest text.
/// If `room` is too small for all, those for the smallest screens come first.
pub(super) fn fitting<const N: usize>(
    columns: &[Column; N],
    rows: &[[Line<'_>; N]],
    screen: u16,
    room: u16,
) -> Vec<(usize, u16)> {
    let mut by_importance: Vec<usize> = (0..N).filter(|&column| screen >= columns[column].2).collect();
    by_importance.sort_by_key(|&column| columns[column].2);
    let mut left = usize::from(room);
    let mut shown = Vec::new();
    for column in by_importance {
        let (head, smallest, _) = columns[column];
        let longest = rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
        let width = longest.max(head.len()).max(smallest.into());
        if width < left {
            left -= width + 1;
            shown.push((column, u16::try_from(width).unwrap_or(u16::MAX)));
        }
    }
    shown.sort_unstable();
    shown
}

/// Shortens a name to this number of characters. Its beginning and its end stay, because names often differ in the end.
pub(super) fn short_name(name: &str, room: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= room {
        return name.to_owned();
    }
    let after = room.saturating_sub(1) / 2;
    let before = room.saturating_sub(1 + after);
    letters[..before].iter().chain(&['…']).chain(&letters[letters.len() - after..]).collect()
}

/// Shortens a text to this number of characters, with an ellipsis after its last whole word.
pub(super) fn shortened(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let start: String = text.chars().take(room.saturating_sub(1)).collect();
    let words = start.rsplit_once(' ').map_or(String::new(), |(words, _)| format!("{words} "));
    words + "…"
}

/// Breaks a text into lines of this number of characters, at most `most`.
pub(super) fn wrapped(text: &str, room: usize, most: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
        } else if let Some(line) = lines.last_mut() {
            if last > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    if lines.len() > most {
        let rest = lines.split_off(most - 1).join(" ");
        lines.push(shortened(&rest, room));
    }
    lines
}

/// Returns the width that columns take, each with a space before it.
pub(super) fn taken(shown: &[(usize, u16)]) -> u16 {
    shown.iter().map(|(_, width)| width + 1).sum()
}
