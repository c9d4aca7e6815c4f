//! Styles. Colours are the sixteen of the terminal, which fit light and dark backgrounds; no information is
//! shown by colour alone.

use ratatui::style::{Color, Modifier, Style};

/// The styles of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    colours: bool,
}

impl Theme {
    /// Styles with colours, or with font weight only.
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

    /// Predicted values.
    pub(super) fn predicted(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// Measured values.
    pub(super) fn actual(self) -> Style {
        self.colour(Color::Blue)
    }

    /// Barrier wait.
    pub(super) fn waiting(self) -> Style {
        self.faint()
    }

    /// A forecast error: bad above 10 %, a warning above 5 %.
    pub(super) fn error(self, ratio: f64) -> Style {
        match ratio.abs() {
            error if error > 0.1 => self.bad(),
            error if error > 0.05 => self.warning(),
            _ => Style::new(),
        }
    }
}
