//! Wire types that agents, the predictor and trainers exchange.
//!
//! The predictor rejects a request with an unknown field and names the field, so a misspelt option is never
//! ignored. Responses may gain fields: clients ignore fields that they do not know. Names end in their unit
//! (`_s`, `_bytes`, `_unix_ms`, `_samples_per_s`). A missing reading is absent from its map and listed in
//! `missing`; it is never 0.
//!
//! # Examples
//! ```
//! use evenstep_protocol::JobSpec;
//!
//! let spec: JobSpec = serde_json::from_str(r#"{"global_batch": 512, "quantum": 8}"#)?;
//! assert_eq!((spec.global_batch, spec.quantum), (512, 8));
//! assert_eq!(spec.unit, "samples", "an option that is absent has its default");
//!
//! let misspelt = serde_json::from_str::<JobSpec>(r#"{"global_batch": 512, "quantun": 8}"#);
//! assert!(misspelt.unwrap_err().to_string().contains("unknown field `quantun`"));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod access;
mod allocation;
mod background;
mod burst_profile;
pub mod columns;
mod ids;
mod job;
mod learning_rate;
mod live;
mod problem;
mod reports;
mod store;
mod summary;
mod telemetry;
mod view;

pub use access::{SessionView, SignIn};
pub use allocation::{
    AllocateRequest, AllocateResponse, Allocation, Decision, DecisionKind, Tail, TailReport, WorkerReport,
};
pub use background::{BackgroundBudget, BackgroundSettings};
pub use burst_profile::{BurstAllReduce, BurstLayer, BurstNetwork, BurstProfile, CountChange, InvalidChange};
pub use ids::{InvalidId, JobId, NodeId, WorkerId};
pub use job::{Hedge, JobSpec, JoinRequest, JoinResponse, OomReport, OomResponse, WorkerOverride};
pub use learning_rate::{LearningRateRule, LearningRateSettings, OptimizerInstruction, Ramp};
pub use live::{
    HistoryView, JobSummary, LiveView, LogEntry, LogKind, LogView, NodeSummary, OperatorView, StepView,
    StepWorker, WorkerHistory,
};
pub use problem::{PROBLEM_CONTENT_TYPE, Problem};
pub use reports::{ReportSummary, ReportsView};
pub use store::{LevelView, RetentionView, StoreView};
pub use summary::{GainView, SavedView, SlowWorker, SummaryView};
pub use telemetry::{
    GpuGap, GpuInstanceSample, GpuSample, NodeSample, ProcessSample, Readings, TelemetryBatch,
    TelemetryResponse, driver,
};
pub use view::{
    CapReason, CapView, CurveView, ForecastView, HedgeView, JobState, JobView, JobsView, ModelView,
    NodeHealthView, NodeStraggler, NodeView, NodeWorker, NodesView, RefitView, SamplesView, SpeedPoint,
    SpeedsView, StragglerReason, StragglerView, WorkerForecastView, WorkerState, WorkerView, WorkersView,
};

/// Default URL of the predictor: loopback only.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7117";
