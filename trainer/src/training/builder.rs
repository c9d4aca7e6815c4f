//! The training that each worker runs, and the builder of a run.

use anyhow::{Result, bail};
use tch::Device;

use super::observer::Hooks;
use super::options::{LaunchOptions, Options};
use super::process::WorkerProcess;
use crate::data::Dataset;
use crate::model::Model;
use crate::plan::Policy;

/// Training of one worker: options, model and data.
pub struct Training {
    /// Options of the run.
    pub options: Options,
    /// Creates the model on a device. The run starts with rank 0's parameters.
    pub model: Box<dyn Fn(Device) -> Result<Box<dyn Model>>>,
    /// A description of the model for logs and checkpoints. A run resumes only with a model of the same name.
    pub model_name: String,
    /// The training data.
    pub data: Box<dyn Dataset>,
    /// The data for the final loss. If absent, the training data is used.
    pub held_out: Option<Box<dyn Dataset>>,
}

type Hook = Box<dyn Fn(&WorkerProcess) -> Result<Hooks>>;
type Data = Box<dyn Fn() -> Result<Box<dyn Dataset>>>;

/// Builds a run of your own model; see [`Training::builder`].
pub struct Builder {
    pub(crate) launch: LaunchOptions,
    pub(crate) hooks: Hook,
    options: Options,
    model: Box<dyn Fn(Device) -> Result<Box<dyn Model>>>,
    model_name: String,
    data: Data,
    held_out: Option<Data>,
}

impl Training {
    /// Returns the builder of a run with two workers. `model` creates the model and `data` opens the data
    /// set.
    ///
    /// Every worker process calls both functions. Options that are not set here come from `EVENSTEP_*`
    /// variables or keep their defaults.
    ///
    /// # Errors
    /// An `EVENSTEP_*` variable has an invalid value.
    pub fn builder<M: Model + 'static, D: Dataset + 'static>(
        model: impl Fn(Device) -> Result<M> + 'static,
        data: impl Fn() -> Result<D> + 'static,
    ) -> Result<Builder> {
        Ok(Builder {
            launch: LaunchOptions::new(2),
            options: Options::parse([""; 0])?,
            model: Box::new(move |device| Ok(Box::new(model(device)?))),
            model_name: std::any::type_name::<M>().rsplit("::").next().unwrap_or("model").to_owned(),
            data: Box::new(move || Ok(Box::new(data()?))),
            held_out: None,
            hooks: Box::new(|_| Ok(Hooks::default())),
        })
    }
}

impl Builder {
    /// Number of worker processes on this machine. Default 2.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.launch.workers = workers;
        self
    }

    /// Policy that splits iterations over workers. Default [`Policy::Evenstep`], which queries the predictor.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = vec![policy];
        self
    }

    /// Number of samples per iteration over all workers. Default 512.
    #[must_use]
    pub fn global_batch(mut self, samples: u64) -> Self {
        self.options.global_batch = Some(samples);
        self
    }

    /// Number of epochs. Default 1.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.options.epochs = Some(epochs);
        self
    }

    /// Learning rate of SGD with momentum 0.9. Default 0.05.
    #[must_use]
    pub fn learning_rate(mut self, learning_rate: f64) -> Self {
        self.options.step.lr = learning_rate;
        self
    }

    /// Changes any other option.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Options, &mut LaunchOptions)) -> Self {
        change(&mut self.options, &mut self.launch);
        self
    }

    /// Name of the model in logs and checkpoints. Default: the name of its type.
    #[must_use]
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.model_name = name.into();
        self
    }

    /// Data for the final loss. Default: the training data.
    #[must_use]
    pub fn held_out<D: Dataset + 'static>(mut self, data: impl Fn() -> Result<D> + 'static) -> Self {
        self.held_out = Some(Box::new(move || Ok(Box::new(data()?))));
        self
    }

    /// Adds an observer or an imposed pace to each worker.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Fn(&WorkerProcess) -> Result<Hooks> + 'static) -> Self {
        self.hooks = Box::new(hooks);
        self
    }

    /// Returns the current options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the training of a worker, with the data opened.
    ///
    /// # Errors
    /// The data cannot be opened, or has no samples.
    pub(crate) fn training(self) -> Result<Training> {
        let data = (self.data)()?;
        let held_out = self.held_out.map(|open| open()).transpose()?;
        for (which, data) in [("training data", Some(&data)), ("held-out data", held_out.as_ref())] {
            if let Some(data) = data.filter(|data| data.is_empty()) {
                bail!("{which} {}: the data set has no samples; it must have at least 1", data.name());
            }
        }
        Ok(Training { data, held_out, options: self.options, model: self.model, model_name: self.model_name })
    }
}
