//! Colours: of the terminal's own sixteen, so that they fit light and dark ones; never the only sign of anything.

use ratatui::style::{Color, Modifier, Style};

/// How things are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    colours: bool,
}

impl Theme {
    /// With colours, or with weight alone.
    pub fn new(colours: bool) -> Self {
        Self { colours }
    }

    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub(super) fn warning(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// What was predicted.
    pub(super) fn predicted(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// What was measured.
    pub(super) fn actual(self) -> Style {
        self.colour(Color::Blue)
    }

    /// Waiting.
    pub(super) fn waiting(self) -> Style {
        self.faint()
    }

    /// An error of a forecast: beyond a tenth it is bad, beyond a twentieth worth a look.
    pub(super) fn error(self, ratio: f64) -> Style {
        match ratio.abs() {
            error if error > 0.1 => self.bad(),
            error if error > 0.05 => self.warning(),
            _ => Style::new(),
        }
    }
}
