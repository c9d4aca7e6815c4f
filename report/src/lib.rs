//! Self-contained HTML reports: charts, tables and words in one file.
