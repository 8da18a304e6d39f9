//! Tables as files: CSV for every tool, Parquet for those that need types.
//!
//! CSV follows RFC 4180: UTF-8, a head line, lines end in CRLF, texts that hold commas, quotes or line ends
//! are quoted. Null is the empty field; so is an empty text, which only Parquet tells apart. Texts stand as
//! they were said: `NA` is a text (pandas: `keep_default_na=False`), and a spreadsheet may take a text that
//! begins with `=`, `+`, `-` or `@` for a formula, so open Parquet there or import such columns as text.
//!
//! Parquet has columns that may be null, of UTF-8 strings, 64-bit integers (seeds unsigned), doubles and
//! booleans; dictionaries keep repeated keys small, and nothing is compressed.

use super::table::{Column, Table, Values};
use super::tables::Tables;
use crate::files;
use anyhow::Context as _;
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Tables {
    /// Writes each table as `NAME.csv` and `NAME.parquet` into a folder, which is made if it is not there,
    /// and returns their paths.
    ///
    /// # Errors
    /// The folder or a file can't be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let can_not = |path: &Path| format!("can't write {}", path.display());
        std::fs::create_dir_all(folder).with_context(|| can_not(folder))?;
        let mut written = Vec::new();
        for table in &self.0 {
            for (extension, write) in [("csv", Table::csv as TableWriter), ("parquet", Table::parquet)] {
                let path = folder.join(table.name).with_extension(extension);
                let mut text = Vec::new();
                write(table, &mut text).with_context(|| can_not(&path))?;
                files::write(&path, text)?;
                written.push(path);
            }
        }
        Ok(written)
    }
}

/// Writes a table in some format.
type TableWriter = fn(&Table, &mut Vec<u8>) -> anyhow::Result<()>;

impl Table {
    /// Writes the table as CSV.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn csv(&self, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(out);
        writer.write_record(self.columns.iter().map(|column| &column.name))?;
        for row in 0..self.n_rows() {
            let fields = self.columns.iter().map(|column| column.values.text(row).unwrap_or_default());
            writer.write_record(fields)?;
        }
        Ok(writer.flush()?)
    }

    /// Writes the table as Parquet.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn parquet(&self, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let fields = self.columns.iter().map(|column| Ok(Arc::new(field(column)?)));
        let fields = fields.collect::<anyhow::Result<_>>()?;
        let schema = Type::group_type_builder(self.name).with_fields(fields).build()?;
        let by = format!("greenroom version {}", env!("CARGO_PKG_VERSION"));
        let properties = WriterProperties::builder().set_created_by(by).build();
        let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
        let mut rows = writer.next_row_group()?;
        for column in &self.columns {
            let mut writer = rows.next_column()?.context("a column of the schema has no writer")?;
            write_column(&mut writer, &column.values)?;
            writer.close()?;
        }
        rows.close()?;
        writer.close()?;
        Ok(())
    }
}

/// A column as Parquet's schema has it.
fn field(column: &Column) -> anyhow::Result<Type> {
    let (physical, logical) = match &column.values {
        Values::Bool(_) => (Physical::BOOLEAN, None),
        Values::Int(_) => (Physical::INT64, Some(LogicalType::integer(64, true))),
        Values::Natural(_) => (Physical::INT64, Some(LogicalType::integer(64, false))),
        Values::Float(_) => (Physical::DOUBLE, None),
        Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let field = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    Ok(field.build()?)
}

fn write_column(writer: &mut SerializedColumnWriter<'_>, values: &Values) -> anyhow::Result<()> {
    match values {
        Values::Bool(values) => write_values::<BoolType>(writer, values.iter().copied()),
        Values::Int(values) => write_values::<Int64Type>(writer, values.iter().copied()),
        // The same 64 bits; the schema marks them as unsigned.
        Values::Natural(values) => {
            write_values::<Int64Type>(writer, values.iter().map(|value| value.map(u64::cast_signed)))
        }
        Values::Float(values) => write_values::<DoubleType>(writer, values.iter().copied()),
        Values::Text(values) => {
            let bytes = |text: &String| ByteArray::from(text.as_str());
            write_values::<ByteArrayType>(writer, values.iter().map(|text| text.as_ref().map(bytes)))
        }
    }
}

/// Writes what is there, and for each row whether it is.
fn write_values<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    values: impl Iterator<Item = Option<T::T>> + Clone,
) -> anyhow::Result<()> {
    let levels: Vec<i16> = values.clone().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.flatten().collect();
    writer.typed::<T>().write_batch(&present, Some(&levels), None)?;
    Ok(())
}
