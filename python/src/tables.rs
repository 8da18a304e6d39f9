//! Tables of runs as Arrow, by the PyCapsule interface: pandas, polars and DuckDB read them without copies.

use crate::errors::failed;
use anyhow::Context as _;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
    UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use greenroom::experiment;
use greenroom::replay::{Search, load_scenario, transcript_file};
use greenroom::statistics::{Cell, Run, Sample, Table as Columns, Values, figure_tables, summarize, tables};
use greenroom::transcript::Transcript;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A table.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Table {
    name: &'static str,
    batch: RecordBatch,
    columns: Columns,
}

impl Table {
    fn new(columns: Columns) -> anyhow::Result<Self> {
        let array = |values: &Values| -> (DataType, ArrayRef) {
            match values {
                Values::Bool(values) => (DataType::Boolean, Arc::new(BooleanArray::from(values.clone()))),
                Values::Int(values) => (DataType::Int64, Arc::new(Int64Array::from(values.clone()))),
                Values::Natural(values) => (DataType::UInt64, Arc::new(UInt64Array::from(values.clone()))),
                Values::Float(values) => (DataType::Float64, Arc::new(Float64Array::from(values.clone()))),
                Values::Text(values) => (DataType::Utf8, Arc::new(StringArray::from(values.clone()))),
            }
        };
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for column in &columns.columns {
            let (kind, values) = array(&column.values);
            fields.push(Field::new(&column.name, kind, true));
            arrays.push(values);
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        Ok(Self { name: columns.name, batch, columns })
    }
}

#[pymethods]
impl Table {
    /// Its name.
    #[getter]
    fn name(&self) -> &'static str {
        self.name
    }

    /// Names of its columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.columns.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.columns.n_rows()
    }

    /// Its columns as lists, by their names.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for column in &self.columns.columns {
            let values = match &column.values {
                Values::Bool(values) => PyList::new(py, values)?,
                Values::Int(values) => PyList::new(py, values)?,
                Values::Natural(values) => PyList::new(py, values)?,
                Values::Float(values) => PyList::new(py, values)?,
                Values::Text(values) => PyList::new(py, values)?,
            };
            columns.set_item(&column.name, values)?;
        }
        Ok(columns)
    }

    /// The table as a capsule `arrow_array_stream`; another schema can't be asked for.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema); // a hint, which a producer may ignore
        let (batch, schema) = (self.batch.clone(), self.batch.schema());
        let batches = RecordBatchIterator::new([Ok(batch)], schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// The tables of a run, or of an experiment with its figures.
#[pyfunction]
pub(crate) fn read_tables(py: Python<'_>, folder: PathBuf) -> PyResult<Vec<Table>> {
    let made = py.detach(|| {
        let sample = sample(&folder)?;
        let mut all = tables(&sample).0;
        if folder.join(experiment::FILE).exists() {
            all.extend(figure_tables(&summarize(&sample)).0);
        }
        all.into_iter().map(Table::new).collect::<anyhow::Result<_>>()
    });
    made.map_err(|error| failed(&error))
}

fn sample(folder: &Path) -> anyhow::Result<Sample> {
    let search = Search::default();
    if folder.join(experiment::FILE).exists() {
        return Ok(experiment::read(folder, &search)?.1);
    }
    let file = transcript_file(folder);
    let transcript = Transcript::open(&file)?;
    let header = &transcript.header.record;
    let loaded = load_scenario(&file, header, &search)?;
    let report =
        || format!("the scenario of {} has errors:\n{}", file.display(), loaded.report.render(false));
    let scenario = loaded.scenario.clone().with_context(report)?;
    let run = Run { cell: 0, seed: header.seed, folder: folder.display().to_string(), transcript, scenario };
    Ok(Sample { cells: vec![Cell::default()], runs: vec![run] })
}

/// Writes the scores of a run, given as JSON.
#[pyfunction]
pub(crate) fn write_scores(folder: PathBuf, scores: &str) -> PyResult<()> {
    let scores = serde_json::from_str(scores)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    experiment::write_scores(&folder, &scores).map_err(|error| failed(&error))
}

/// The scores of a run, as JSON.
#[pyfunction]
pub(crate) fn read_scores(folder: PathBuf) -> PyResult<String> {
    let scores = experiment::read_scores(&folder).map_err(|error| failed(&error))?;
    Ok(serde_json::json!(scores).to_string())
}
