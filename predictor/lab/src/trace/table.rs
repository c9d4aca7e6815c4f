//! Tables in files, separated by commas, semicolons, tabs or blanks, with or without a header.

use std::io::Read;
use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};
use evenstep_report::output::STANDARD_STREAM;

/// Maximum size of a file in bytes.
pub const FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Maximum number of rows of a table.
pub const ROWS_MAX: usize = 2_000_000;
/// Maximum number of columns of a table.
pub const COLUMNS_MAX: usize = 1_000;

/// Errors of reading a table. Messages name the file as given on the command line.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error("{trace}: {source}")]
    Unreadable {
        /// The file.
        trace: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is not a valid row.
    #[error("{trace}:{line}: {rule}")]
    Line {
        /// The file.
        trace: String,
        /// Line number, from 1.
        line: u64,
        /// The rule that the line breaks.
        rule: String,
    },
    /// A cell has an invalid value.
    #[error("{trace}:{line}: column {column:?}: {value:?} {rule}")]
    Cell {
        /// The file.
        trace: String,
        /// Line number, from 1.
        line: u64,
        /// Name of the column.
        column: String,
        /// Text of the cell.
        value: String,
        /// The rule that the cell breaks.
        rule: String,
    },
    /// The table as a whole is invalid.
    #[error("{trace}: {rule}")]
    Whole {
        /// The file.
        trace: String,
        /// The rule that the table breaks.
        rule: String,
    },
}

/// A table of text cells.
#[derive(Debug)]
pub struct Table {
    /// The file, as given on the command line.
    pub trace: String,
    /// Names of the columns. Without a header they are the column numbers from 0. A header may leave names
    /// empty.
    pub columns: Vec<String>,
    rows: Vec<(u64, StringRecord)>,
    /// By column: the decimal signs of its numbers.
    signs: Vec<Signs>,
}

/// Decimal signs of the numbers in a column.
#[derive(Debug, Clone, Default)]
struct Signs {
    /// The first cell with a decimal comma, and its line.
    comma: Option<(u64, String)>,
    /// Whether a sign may separate thousands: each number with it has three digits after it, and none is below 1.
    thousands: bool,
}

impl Signs {
    /// The signs of a column of cells in a table with this separator. A table with commas has points only.
    fn of<'a>(cells: impl Iterator<Item = (u64, &'a str)> + Clone, separator: u8) -> Self {
        if separator == b',' {
            return Self::default();
        }
        let comma = cells.clone().find(|(_, cell)| is_decimal(cell, ','));
        // Points separate thousands only where commas are decimal signs, as in tables with semicolons.
        let sign = if comma.is_some() { ',' } else { '.' };
        let mut numbers = cells.filter(|(_, cell)| is_decimal(cell, sign)).peekable();
        let is_used = numbers.peek().is_some() && (sign == ',' || separator == b';');
        Self {
            comma: comma.map(|(line, cell)| (line, cell.to_owned())),
            thousands: is_used && numbers.all(|(_, cell)| may_be_thousands(cell, sign)),
        }
    }
}

impl Table {
    /// Reads a file, or standard input for `-`.
    ///
    /// # Errors
    /// [`TableError`] if the file cannot be read, exceeds a limit or is not a table.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let trace = path.display().to_string();
        let unreadable = |source| TableError::Unreadable { trace: trace.clone(), source };
        let source: Box<dyn Read> = if trace == STANDARD_STREAM {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(std::fs::File::open(path).map_err(unreadable)?)
        };
        let mut bytes = Vec::new();
        source.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let rule = format!("larger than the maximum of {FILE_BYTES_MAX} bytes");
            return Err(TableError::Whole { trace, rule });
        }
        Self::parse(trace, &bytes)
    }

    fn parse(trace: String, bytes: &[u8]) -> Result<Self, TableError> {
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
            return Err(TableError::Whole { trace, rule: "the text is UTF-16; save it as UTF-8".into() });
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let separator = separator(bytes);
        let mut reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .delimiter(separator)
            .from_reader(bytes);
        let mut rows: Vec<(u64, StringRecord)> = Vec::new();
        for record in reader.records() {
            let mut record = record.map_err(|error| not_a_line(&trace, &error))?;
            let line = line_of(bytes, &record);
            if separator == b' ' {
                // Several blanks in a row are one separator.
                record = record.iter().filter(|cell| !cell.is_empty()).collect();
            }
            if rows.len() > ROWS_MAX || record.len() > COLUMNS_MAX {
                let rule = format!("exceeds the maximum of {ROWS_MAX} rows and {COLUMNS_MAX} columns");
                return Err(TableError::Line { trace, line, rule });
            }
            rows.push((line, record));
        }
        Self::with_names(trace, rows, separator)
    }

    fn with_names(
        trace: String,
        mut rows: Vec<(u64, StringRecord)>,
        separator: u8,
    ) -> Result<Self, TableError> {
        let Some((_, first)) = rows.first() else {
            return Err(TableError::Whole { trace, rule: "the table is empty".into() });
        };
        let no_header = first.iter().all(|cell| {
            cell.is_empty() || cell.parse::<f64>().is_ok() || separator != b',' && is_decimal(cell, ',')
        });
        // A separator at the end of every line creates an empty last column. It is dropped.
        let trailing = rows
            .iter()
            .all(|(_, row)| row.len() >= first.len() && row.iter().skip(first.len() - 1).all(str::is_empty));
        let width = first.len() - usize::from(trailing && first.len() > 1);
        let columns: Vec<String> = if no_header {
            (0..width).map(|column| column.to_string()).collect()
        } else {
            let (_, header) = rows.remove(0);
            header.iter().take(width).map(str::to_owned).collect()
        };
        for (line, row) in &rows {
            if row.len() < width || row.iter().skip(width).any(|cell| !cell.is_empty()) {
                let rule = format!("{} cells, but the first line has {width}", row.len());
                return Err(TableError::Line { trace, line: *line, rule });
            }
        }
        let twice =
            columns.iter().enumerate().find(|(at, name)| !name.is_empty() && columns[..*at].contains(name));
        if let Some((_, name)) = twice {
            let rule = format!("two columns have the name {name:?}");
            return Err(TableError::Whole { trace, rule });
        }
        let cells =
            |column: usize| rows.iter().map(move |(line, row)| (*line, row.get(column).unwrap_or_default()));
        let signs = (0..width).map(|column| Signs::of(cells(column), separator)).collect();
        Ok(Self { trace, columns, rows, signs })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the index of the column `name`.
    ///
    /// # Errors
    /// [`TableError::Whole`] if there is no such column. The message lists the columns.
    pub fn column(&self, name: &str) -> Result<usize, TableError> {
        self.find(name).ok_or_else(|| {
            let there: Vec<&str> =
                self.columns.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
            let rule = format!("no column {name:?}; the columns are {}", there.join(", "));
            TableError::Whole { trace: self.trace.clone(), rule }
        })
    }

    /// Returns the index of the column `name`, or `None` if it does not exist.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name).filter(|_| !name.is_empty())
    }

    /// Text of a cell.
    pub fn text(&self, row: usize, column: usize) -> &str {
        self.rows[row].1.get(column).unwrap_or_default()
    }

    /// Returns the number in a cell, or `None` if the reading is missing (empty or NaN).
    ///
    /// # Errors
    /// [`TableError::Cell`] if the cell holds anything else than a finite number.
    pub fn number(&self, row: usize, column: usize) -> Result<Option<f64>, TableError> {
        let text = self.text(row, column);
        if text.is_empty() {
            return Ok(None);
        }
        let signs = &self.signs[column];
        let number = match &signs.comma {
            _ if signs.thousands && text.contains([',', '.']) => {
                let rule = "may have a decimal sign or separate thousands; write numbers without separated thousands, and with \
                    another number of decimals";
                return Err(self.cell_error(row, column, rule));
            }
            Some((line, cell)) if text.contains('.') => {
                let rule = format!("has a decimal point, but line {line} has a decimal comma: {cell:?}");
                return Err(self.cell_error(row, column, &rule));
            }
            Some(_) => text.replace(',', ".").parse::<f64>(),
            None => text.parse::<f64>(),
        };
        match number {
            Ok(number) if number.is_nan() => Ok(None),
            Ok(number) if number.is_finite() => Ok(Some(number)),
            Ok(_) => Err(self.cell_error(row, column, "is not finite")),
            Err(_) if signs.comma.is_none() && text.contains(',') => {
                let rule = "is not a number (in a table separated by commas, decimals have a point)";
                Err(self.cell_error(row, column, rule))
            }
            Err(_) => Err(self.cell_error(row, column, "is not a number")),
        }
    }

    /// Line of a row in the file, from 1.
    pub fn line(&self, row: usize) -> u64 {
        self.rows[row].0
    }

    /// Whether all cells of two rows are equal.
    pub fn are_equal(&self, row: usize, other: usize) -> bool {
        self.rows[row].1 == self.rows[other].1
    }

    /// Returns the number in a cell that must not be missing.
    ///
    /// # Errors
    /// [`TableError::Cell`] if the cell does not hold a finite number.
    pub fn measured(&self, row: usize, column: usize) -> Result<f64, TableError> {
        self.number(row, column)?
            .ok_or_else(|| self.cell_error(row, column, "is missing; a number is required"))
    }

    /// Returns the error of a cell that breaks `rule`.
    pub fn cell_error(&self, row: usize, column: usize, rule: &str) -> TableError {
        TableError::Cell {
            trace: self.trace.clone(),
            line: self.rows[row].0,
            column: self.columns[column].clone(),
            value: self.text(row, column).to_owned(),
            rule: rule.to_owned(),
        }
    }
}

/// Separators of cells, before blanks. A table with semicolons or tabs may have decimal commas.
const SEPARATORS: [u8; 3] = [b';', b'\t', b','];

/// Returns the separator of the cells: the first one in the first line by which the second line has as many cells, or else the
/// first one in the first line. Quoted text does not count.
fn separator(bytes: &[u8]) -> u8 {
    let mut lines =
        bytes.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.trim_ascii().is_empty());
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let inside = SEPARATORS.into_iter().filter(|separator| count(first, *separator) > 0);
    let fits = |separator: &u8| count(first, *separator) == count(second, *separator);
    let found = inside.clone().find(fits).or(inside.clone().next());
    found.unwrap_or(if first.trim_ascii().contains(&b' ') { b' ' } else { b',' })
}

/// Number of separators in a line, outside quotes.
fn count(line: &[u8], separator: u8) -> usize {
    let mut quoted = false;
    let is_separator = |byte: &&u8| {
        quoted ^= **byte == b'"';
        !quoted && **byte == separator
    };
    line.iter().filter(is_separator).count()
}

/// Whether a cell is a number with this decimal sign.
fn is_decimal(cell: &str, sign: char) -> bool {
    let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    cell.split_once(sign).is_some_and(|(whole, part)| {
        digit(part.as_bytes().first())
            && (whole.is_empty() || digit(whole.as_bytes().last()))
            && format!("{whole}.{part}").parse::<f64>().is_ok()
    })
}

/// Whether the sign of a number with one may separate thousands.
fn may_be_thousands(cell: &str, sign: char) -> bool {
    cell.trim_start_matches(['-', '+']).split_once(sign).is_some_and(|(whole, part)| {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        part.len() == 3
            && digits(part)
            && (1..=3).contains(&whole.len())
            && digits(whole)
            && !whole.starts_with('0')
    })
}

/// Returns the line of a record's first cell. The reader counts preceding blank lines as part of the record.
fn line_of(bytes: &[u8], record: &StringRecord) -> u64 {
    let Some(position) = record.position() else { return 0 };
    let start = usize::try_from(position.byte()).unwrap_or(usize::MAX).min(bytes.len());
    let blank = bytes[start..].iter().take_while(|byte| matches!(byte, b'\n' | b'\r'));
    position.line() + blank.filter(|byte| **byte == b'\n').count() as u64
}

fn not_a_line(trace: &str, error: &csv::Error) -> TableError {
    let line = error.position().map_or(0, csv::Position::line);
    let rule = match error.kind() {
        csv::ErrorKind::Utf8 { .. } => "the text is not valid UTF-8".into(),
        _ => error.to_string(),
    };
    TableError::Line { trace: trace.to_owned(), line, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Table, String> {
        Table::parse("t".into(), text.as_bytes()).map_err(|error| error.to_string())
    }

    fn numbers(table: &Table) -> Vec<Vec<Option<f64>>> {
        let row = |row| (0..table.columns.len()).map(|column| table.number(row, column).unwrap()).collect();
        (0..table.len()).map(row).collect()
    }

    #[test]
    fn separators_headers_and_what_trails() {
        let comma = parse("\u{feff}\"a\",\"b c\",\n1,2,\n3,,\n").unwrap();
        assert_eq!(comma.columns, ["a", "b c"]);
        assert_eq!(numbers(&comma), [[Some(1.0), Some(2.0)], [Some(3.0), None]]);
        let blank = parse("  1.5   2\n\n 3 -4e1 \n").unwrap();
        assert_eq!(
            (blank.columns.clone(), numbers(&blank)),
            (
                vec!["0".to_owned(), "1".to_owned()],
                vec![vec![Some(1.5), Some(2.0)], vec![Some(3.0), Some(-40.0)]]
            )
        );
        let tab = parse("a\tb\n1\t\n\t2\n").unwrap();
        assert_eq!(numbers(&tab), [[Some(1.0), None], [None, Some(2.0)]]);
        let one = parse("x\n7\nNaN\n").unwrap();
        assert_eq!(numbers(&one), [[Some(7.0)], [None]]);
        let unnamed = parse(",a\n0,5\n").unwrap();
        assert_eq!((unnamed.columns.clone(), unnamed.find("")), (vec![String::new(), "a".into()], None));
        let only_first_row_trails = parse("a,b,\n1,2,3\n").unwrap();
        assert_eq!(only_first_row_trails.columns, ["a", "b", ""]);
    }

    /// The same table, as spreadsheets of different languages write it.
    #[test]
    fn semicolons_tabs_and_decimal_commas() {
        let plain = parse("a,b\n0.5,-1.25e1\n3,\n").unwrap();
        for text in [
            "a;b\n0,5;-1,25e1\n3;\n",
            "a\tb\r\n0,5\t-1,25e1\r\n3\t\r\n",
            "a;b\n0.5;-12.5\n3;\n",
            "\"a\";\"b\"\n\"0,5\";-12,5\n3;\n",
        ] {
            let other = parse(text).unwrap();
            assert_eq!((&other.columns, numbers(&other)), (&plain.columns, numbers(&plain)), "{text:?}");
        }
        assert_eq!(
            numbers(&parse("1,5;2\n,5;-0,5\n").unwrap()),
            [[Some(1.5), Some(2.0)], [Some(0.5), Some(-0.5)]]
        );
        // A name may contain a separator.
        assert_eq!(parse("a;x,b\n1,2\n").unwrap().columns, ["a;x", "b"]);
        assert_eq!(parse("\"a;x\",b\n1,2\n").unwrap().columns, ["a;x", "b"]);
        assert_eq!(parse("a;b,c\n1;0,5\n").unwrap().columns, ["a", "b,c"]);
        let wrong =
            |text: &str, row, column| parse(text).unwrap().number(row, column).unwrap_err().to_string();
        assert_eq!(
            wrong("a;b\n1;0,5\n2;0.5\n", 1, 1),
            "t:3: column \"b\": \"0.5\" has a decimal point, but line 2 has a decimal comma: \"0,5\""
        );
        assert!(wrong("a;b\n1;0,5\n2;1.234,5\n", 1, 1).contains("has a decimal point"));
        // Ids are not numbers, and each column has its own sign.
        assert_eq!(parse("a;b\n0,1;0.5\n0,2;1.5\n").unwrap().number(1, 1).unwrap(), Some(1.5));
        // 2324 or 2.324.
        for text in ["a;b\n1;810\n2;2,324\n", "a\tb\n1\t810\n2\t2,324\n", "a;b\n1;810\n2;2.324\n"] {
            assert!(wrong(text, 1, 1).contains("may have a decimal sign or separate thousands"), "{text:?}");
        }
        for (text, number) in [
            ("a;b\n1;0,810\n2;2,324\n", 2.324),
            ("a;b\n1;8,1\n2;2,324\n", 2.324),
            ("a\tb\n1\t8\n2\t2.324\n", 2.324),
        ] {
            assert_eq!(parse(text).unwrap().number(1, 1).unwrap(), Some(number), "{text:?}");
        }
        assert!(wrong("a;b\n1;0,5\n2;1,234,5\n", 1, 1).ends_with("is not a number"));
        assert!(wrong("a,b\n1,\"0,5\"\n", 0, 1).contains("separated by commas"));
        let wide = Table::parse("t".into(), b"\xff\xfea\0,\0").unwrap_err().to_string();
        assert_eq!(wide, "t: the text is UTF-16; save it as UTF-8");
    }

    #[test]
    fn errors_name_the_value() {
        let table = parse("a,b\n1,2\n\n\nx,inf\n").unwrap();
        assert_eq!(table.number(1, 0).unwrap_err().to_string(), "t:5: column \"a\": \"x\" is not a number");
        assert_eq!(table.number(1, 1).unwrap_err().to_string(), "t:5: column \"b\": \"inf\" is not finite");
        assert_eq!(table.column("c").unwrap_err().to_string(), "t: no column \"c\"; the columns are a, b");
        assert_eq!(parse("").unwrap_err(), "t: the table is empty");
        assert_eq!(parse("a,b\n1\n").unwrap_err(), "t:2: 1 cells, but the first line has 2");
        assert_eq!(parse("a,b\n1,2\n1,2,3\n").unwrap_err(), "t:3: 3 cells, but the first line has 2");
        assert_eq!(parse("a,a\n1,2\n").unwrap_err(), "t: two columns have the name \"a\"");
        let broken = Table::parse("t".into(), b"a\n1\n\xff\n").unwrap_err().to_string();
        assert_eq!(broken, "t:3: the text is not valid UTF-8");
    }
}
