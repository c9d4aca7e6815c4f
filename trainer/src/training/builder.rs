//! What is trained, and the builder of a run.

use anyhow::Result;
use tch::Device;

use super::observer::Hooks;
use super::options::{LaunchOptions, Options};
use super::process::WorkerProcess;
use crate::data::Dataset;
use crate::model::Model;
use crate::plan::Policy;

/// What each worker trains.
pub struct Training {
    /// How it trains.
    pub options: Options,
    /// Makes the model on a device. Rank 0's parameters are the ones that the run starts with.
    pub model: Box<dyn Fn(Device) -> Result<Box<dyn Model>>>,
    /// A description of the model for logs and checkpoints. A run resumes only with a model of the same name.
    pub model_name: String,
    /// The training data.
    pub data: Box<dyn Dataset>,
    /// The data on which the final loss is measured; without it, on the training data.
    pub held_out: Option<Box<dyn Dataset>>,
}

type Hook = Box<dyn Fn(&WorkerProcess) -> Result<Hooks>>;
type Data = Box<dyn Fn() -> Result<Box<dyn Dataset>>>;

/// Builds a run of your own model: see [`Training::builder`].
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
    /// A run that trains the model that `model` makes, on the data that `data` opens, with two workers.
    ///
    /// Both are called in every worker process. Options that are not set here come from `EVENSTEP_*` variables or are defaults.
    ///
    /// # Errors
    /// An `EVENSTEP_*` variable has a value that is not valid.
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
    /// The number of worker processes on this machine. Default 2.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.launch.workers = workers;
        self
    }

    /// How iterations are shared out. Default [`Policy::Evenstep`], which asks the predictor.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = vec![policy];
        self
    }

    /// The number of samples per iteration, over all workers. Default 512.
    #[must_use]
    pub fn global_batch(mut self, samples: u64) -> Self {
        self.options.global_batch = Some(samples);
        self
    }

    /// The number of epochs. Default 1.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.options.epochs = Some(epochs);
        self
    }

    /// The learning rate of SGD with momentum 0.9. Default 0.05.
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

    /// The name of the model in logs and checkpoints. Default: the name of its type.
    #[must_use]
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.model_name = name.into();
        self
    }

    /// The data on which the final loss is measured. Default: the training data.
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

    /// The options so far.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What a worker trains: opens the data.
    ///
    /// # Errors
    /// The data cannot be opened.
    pub(crate) fn training(self) -> Result<Training> {
        Ok(Training {
            data: (self.data)()?,
            held_out: self.held_out.map(|open| open()).transpose()?,
            options: self.options,
            model: self.model,
            model_name: self.model_name,
        })
    }
}
