//! Tables, their columns and their values.

/// The tables of the history, each after those that its rows refer to. Whatever else is in the database is not ours, but for who
/// serves at the moment (`predictor`), which is no history.
pub(super) const TABLES: [&str; 12] = [
    "job",
    "worker",
    "report",
    "allocation",
    "event",
    "model_state",
    "device_model",
    "worker_summary",
    "node",
    "node_sample",
    "node_sample_gone",
    "node_summary",
];

/// Columns that say who serves at the moment: never exported, never moved.
pub(super) const OF_THE_MOMENT: [(&str, &str); 1] = [("job", "owner")];

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its columns in their order, without those that the database computes.
    pub columns: Vec<Column>,
    /// The places of the columns of its primary key, in the order of the key.
    pub key: Vec<usize>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers of 64 bits.
    Integer,
    /// Floating-point numbers of 64 bits.
    Real,
    /// Text, whose bytes are kept.
    Text,
    /// JSON, of which the database keeps the meaning and not the bytes.
    Json,
    /// Bytes.
    Bytes,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// None.
    Null,
    /// Of a [`Kind::Integer`].
    Integer(i64),
    /// Of a [`Kind::Real`].
    Real(f64),
    /// Of a [`Kind::Text`] or [`Kind::Json`].
    Text(String),
    /// Of a [`Kind::Bytes`].
    Bytes(Vec<u8>),
}

/// The values of a row, in the order of the table's columns.
pub type Row = Vec<Cell>;

impl Table {
    /// The place of a column.
    pub fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name == column)
    }

    /// A row's key in words: `job_id=a iteration=3`.
    pub fn key_of(&self, row: &[Cell]) -> String {
        let part = |place: &usize| Some(format!("{}={}", self.columns.get(*place)?.name, row.get(*place)?));
        self.key.iter().filter_map(part).collect::<Vec<_>>().join(" ")
    }

    /// Columns as SQL lists them.
    pub(super) fn column_list(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        names.join(", ")
    }
}

impl Cell {
    /// Bytes that it takes in memory, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Integer(_) | Self::Real(_) => size_of::<Self>(),
            Self::Text(text) => size_of::<Self>() + text.len(),
            Self::Bytes(bytes) => size_of::<Self>() + bytes.len(),
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Real(value) => write!(f, "{value:?}"),
            Self::Text(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

/// A name in SQL, of either database.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
