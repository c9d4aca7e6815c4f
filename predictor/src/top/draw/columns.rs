//! Columns of tables. A number with missing digits is wrong, so a column is omitted rather than cut off.

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

/// Returns the width that columns take, each with a space before it.
pub(super) fn taken(shown: &[(usize, u16)]) -> u16 {
    shown.iter().map(|(_, width)| width + 1).sum()
}
