//! Tables, their columns and their values.

/// The tables that commands read, each after the tables that its rows refer to. Other tables in the database
/// are ignored, including `predictor`, which has only the predictors that serve the store at present.
pub(crate) const TABLES: [&str; 16] = [
    "job",
    "worker",
    "segment",
    "report",
    "allocation",
    "step",
    "event",
    "model_state",
    "device_model",
    "worker_summary",
    "node",
    "node_sample",
    "node_sample_gone",
    "node_summary",
    "token",
    "audit",
];

/// Columns about the present state of the service, which are never exported or imported.
pub(super) const TRANSIENT_COLUMNS: [(&str, &str); 1] = [("job", "owner")];

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Columns in order, without generated columns.
    pub columns: Vec<Column>,
    /// Indexes of the primary key's columns, in the order of the key.
    pub key: Vec<usize>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Kind of values.
    pub kind: Kind,
}

/// Kind of values in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit integers.
    Integer,
    /// 64-bit floating-point numbers.
    Real,
    /// Text, stored byte for byte.
    Text,
    /// JSON, of which the database stores the meaning rather than the bytes.
    Json,
    /// Bytes.
    Bytes,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Null.
    Null,
    /// Value of a [`Kind::Integer`] column.
    Integer(i64),
    /// Value of a [`Kind::Real`] column.
    Real(f64),
    /// Value of a [`Kind::Text`] or [`Kind::Json`] column.
    Text(String),
    /// Value of a [`Kind::Bytes`] column, or damaged text.
    Bytes(Vec<u8>),
}

/// The values of a row, in the order of the table's columns.
pub type Row = Vec<Cell>;

impl Table {
    /// Returns the index of a column.
    pub fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name == column)
    }

    /// Formats a row's key: `job_id=a iteration=3`.
    pub fn key_of(&self, row: &[Cell]) -> String {
        let part = |place: &usize| Some(format!("{}={}", self.columns.get(*place)?.name, row.get(*place)?));
        self.key.iter().filter_map(part).collect::<Vec<_>>().join(" ")
    }

    /// Formats the columns as a list for SQL.
    pub(super) fn column_list(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        names.join(", ")
    }
}

impl Cell {
    /// Returns the approximate size in memory, in bytes.
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

/// Quotes an identifier for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
