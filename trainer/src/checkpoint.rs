//! Checkpoints: the complete state that a run needs to resume without any difference.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use evenstep_protocol::JobId;
use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

use crate::plan::{Policy, Rate};

const STATE_FILE: &str = "state.json";
const NAME_PREFIX: &str = "iteration-";
const PARTIAL_SUFFIX: &str = ".partial";
/// A checkpoint that is being replaced by another one of the same iteration.
const FORMER_SUFFIX: &str = ".former";

/// State in a checkpoint other than tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The job id, if the predictor is used.
    pub job_id: Option<JobId>,
    /// The first unfinished iteration.
    pub iteration: u64,
    /// The epoch of that iteration.
    pub epoch: u64,
    /// Samples of that epoch that are done.
    pub position: u64,
    /// Multiplier of the learning rate and its ramp; absent in checkpoints of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Properties that must not change when the run resumes.
    pub identity: Identity,
}

/// Identity of a run: properties that must be the same when it resumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The seed.
    pub seed: u64,
    /// Samples per iteration or, if they follow the number of workers, the batch that the learning rate was
    /// chosen for.
    pub global_batch: u64,
    /// Samples per worker, if the global batch follows the number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_worker_batch: Option<u64>,
    /// Description of the model.
    pub model: String,
    /// Element type of the parameters.
    pub dtype: String,
    /// Description of the data.
    pub data: String,
    /// The policies.
    pub policies: Vec<Policy>,
    /// Position of the learning rate in the velocity rule, in checkpoints of older versions: `outside`, as in this version, or
    /// `inside`, whose velocity has other values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum_form: Option<String>,
}

/// Tensors of one policy's replica.
#[derive(Debug)]
pub struct Tensors<'a> {
    /// The policy.
    pub policy: Policy,
    /// The parameters, in order.
    pub parameters: &'a [Tensor],
    /// The optimizer's velocity.
    pub velocity: &'a Tensor,
}

/// Failure to write or use a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Reading or writing failed.
    #[error("checkpoint {path}: {source}")]
    File {
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The tensors cannot be read or written.
    #[error("checkpoint {path}: {source}")]
    Tensors {
        /// File.
        path: PathBuf,
        /// Cause.
        source: TchError,
    },
    /// The folder has no checkpoint.
    #[error("no checkpoint to resume from in {0}; start without --resume")]
    None(PathBuf),
    /// The checkpoint belongs to another run.
    #[error("checkpoint {path} belongs to another run: its {field} is {found}, this run's is {expected}")]
    OtherRun {
        /// Path of the checkpoint.
        path: PathBuf,
        /// Name of the property that differs.
        field: &'static str,
        /// Value in the checkpoint.
        found: String,
        /// Value in this run.
        expected: String,
    },
    /// A tensor is missing or has another shape.
    #[error("checkpoint {path}: {what}")]
    Shape {
        /// File.
        path: PathBuf,
        /// Name of the tensor.
        what: String,
    },
}

/// Writes a checkpoint, completely or not at all, even if the machine stops during the write.
///
/// # Errors
/// A file cannot be written.
pub fn save(folder: &Path, state: &State, replicas: &[Tensors<'_>]) -> Result<PathBuf, CheckpointError> {
    let target = folder.join(format!("{NAME_PREFIX}{:08}", state.iteration));
    let partial = folder.join(format!("{NAME_PREFIX}{:08}{PARTIAL_SUFFIX}", state.iteration));
    let former = folder.join(format!("{NAME_PREFIX}{:08}{FORMER_SUFFIX}", state.iteration));
    if former.exists() && !target.exists() {
        fs::rename(&former, &target).map_err(at(&target))?;
    }
    for leftover in [&partial, &former] {
        remove(leftover)?;
    }
    fs::create_dir_all(&partial).map_err(at(&partial))?;
    for replica in replicas {
        let path = partial.join(tensor_file(replica.policy));
        let mut named: Vec<(String, Tensor)> = Vec::new();
        for (index, parameter) in replica.parameters.iter().enumerate() {
            named.push((parameter_name(index), parameter.detach()));
        }
        named.push(("velocity".to_owned(), replica.velocity.shallow_clone()));
        Tensor::write_safetensors(&named, &path)
            .map_err(|source| CheckpointError::Tensors { path: path.clone(), source })?;
        sync(&path)?;
    }
    let path = partial.join(STATE_FILE);
    let json = serde_json::to_vec_pretty(state).map_err(io::Error::from).map_err(at(&path))?;
    fs::write(&path, json).map_err(at(&path))?;
    sync(&path)?;
    sync(&partial)?;
    // A folder cannot replace another one in one step. Between the two steps, `latest` finds the former one.
    if target.exists() {
        fs::rename(&target, &former).map_err(at(&former))?;
    }
    fs::rename(&partial, &target).map_err(at(&target))?;
    sync(folder)?;
    remove(&former)?;
    Ok(target)
}

fn remove(folder: &Path) -> Result<(), CheckpointError> {
    if folder.exists() { fs::remove_dir_all(folder).map_err(at(folder)) } else { Ok(()) }
}

/// Returns the latest checkpoint in a folder and its state.
///
/// # Errors
/// The checkpoint is missing, unreadable, or of another run than `identity`.
pub fn latest(folder: &Path, identity: &Identity) -> Result<(PathBuf, State), CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX)) else { continue };
        let replaced = name.strip_suffix(FORMER_SUFFIX);
        let number = replaced.unwrap_or(name).parse::<u64>().ok();
        found.extend(number.map(|number| (number, replaced.is_none(), entry.path())));
    }
    let (_, _, path) = found.into_iter().max().ok_or_else(|| CheckpointError::None(folder.to_owned()))?;
    let file = path.join(STATE_FILE);
    let text = fs::read(&file).map_err(at(&file))?;
    let state: State = serde_json::from_slice(&text).map_err(io::Error::from).map_err(at(&file))?;
    same_run(&path, &state.identity, identity)?;
    Ok((path, state))
}

/// Loads the tensors of a replica from a checkpoint.
///
/// # Errors
/// The file is unreadable, or its tensors have other shapes.
pub fn load(
    checkpoint: &Path,
    policy: Policy,
    parameters: &[Tensor],
    velocity: &mut Tensor,
) -> Result<(), CheckpointError> {
    let path = checkpoint.join(tensor_file(policy));
    let stored = Tensor::read_safetensors(&path)
        .map_err(|source| CheckpointError::Tensors { path: path.clone(), source })?;
    let fill = |name: &str, target: &mut Tensor| {
        let found = stored.iter().find(|(stored_name, _)| stored_name == name);
        match found {
            Some((_, tensor)) if tensor.size() == target.size() && tensor.kind() == target.kind() => {
                tch::no_grad(|| target.copy_(tensor));
                Ok(())
            }
            _ => {
                let what = format!("tensor {name} of shape {:?} is missing", target.size());
                Err(CheckpointError::Shape { path: path.clone(), what })
            }
        }
    };
    for (index, parameter) in parameters.iter().enumerate() {
        fill(&parameter_name(index), &mut parameter.shallow_clone())?;
    }
    fill("velocity", velocity)
}

fn same_run(path: &Path, found: &Identity, expected: &Identity) -> Result<(), CheckpointError> {
    let policies = |identity: &Identity| format!("{:?}", identity.policies);
    let each = |identity: &Identity| match identity.per_worker_batch {
        Some(each) => each.to_string(),
        None => "none".to_owned(),
    };
    let form = |identity: &Identity| identity.momentum_form.clone().unwrap_or_else(|| "outside".to_owned());
    let fields = [
        ("seed", found.seed.to_string(), expected.seed.to_string()),
        ("global batch", found.global_batch.to_string(), expected.global_batch.to_string()),
        ("batch per worker", each(found), each(expected)),
        ("model", found.model.clone(), expected.model.clone()),
        ("dtype", found.dtype.clone(), expected.dtype.clone()),
        ("data", found.data.clone(), expected.data.clone()),
        ("policies", policies(found), policies(expected)),
        ("momentum form", form(found), form(expected)),
    ];
    match fields.into_iter().find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((field, found, expected)) => {
            Err(CheckpointError::OtherRun { path: path.to_owned(), field, found, expected })
        }
    }
}

fn tensor_file(policy: Policy) -> String {
    format!("{policy}.safetensors")
}

fn parameter_name(index: usize) -> String {
    format!("parameter{index}")
}

fn sync(path: &Path) -> Result<(), CheckpointError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(at(path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn state(iteration: u64) -> State {
        let identity = Identity {
            seed: 1,
            global_batch: 8,
            per_worker_batch: None,
            model: "mlp".into(),
            dtype: "float32".into(),
            data: "task".into(),
            policies: vec![Policy::Even],
            momentum_form: None,
        };
        State { job_id: None, iteration, epoch: 2, position: 16, rate: Some(0.3.into()), identity }
    }

    #[test]
    fn the_latest_whole_checkpoint_is_found_and_filled_in() {
        let folder = tempfile::tempdir().unwrap();
        let random = || Tensor::randn([3, 2], (Kind::Float, Device::Cpu));
        let (parameters, velocity) = (vec![random(), random()], random());
        for iteration in [10, 9] {
            let replica = Tensors { policy: Policy::Even, parameters: &parameters, velocity: &velocity };
            save(folder.path(), &state(iteration), &[replica]).unwrap();
        }
        fs::create_dir(folder.path().join("iteration-00000011.partial")).unwrap();
        let (path, found) = latest(folder.path(), &state(0).identity).unwrap();
        assert_eq!(found, state(10));
        let (loaded, mut loaded_velocity) = (vec![random(), random()], random());
        load(&path, Policy::Even, &loaded, &mut loaded_velocity).unwrap();
        assert!(loaded.iter().zip(&parameters).all(|(a, b)| a.equal(b)) && loaded_velocity.equal(&velocity));
        let other = [random()];
        let mut wrong = Tensor::zeros([5], (Kind::Float, Device::Cpu));
        assert!(matches!(load(&path, Policy::Even, &other, &mut wrong), Err(CheckpointError::Shape { .. })));
    }

    /// A kill at any moment leaves a whole checkpoint of the iteration.
    #[test]
    fn a_checkpoint_is_replaced_without_a_moment_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let at_position = |position| State { position, ..state(7) };
        let found = || latest(folder.path(), &state(0).identity).unwrap().1.position;
        let target = save(folder.path(), &at_position(1), &[]).unwrap();
        // The format has no complex numbers, so the write fails in the middle.
        let complex = Tensor::zeros([1], (Kind::ComplexFloat, Device::Cpu));
        let failing = Tensors { policy: Policy::Even, parameters: &[], velocity: &complex };
        save(folder.path(), &at_position(2), &[failing]).unwrap_err();
        assert_eq!(found(), 1);
        // The process ended between the two renamings.
        let former = folder.path().join("iteration-00000007.former");
        fs::rename(&target, &former).unwrap();
        assert_eq!(found(), 1);
        assert_eq!(save(folder.path(), &at_position(3), &[]).unwrap(), target);
        assert_eq!(found(), 3);
        assert!(!former.exists());
        // It ended before the former one was removed.
        fs::create_dir(&former).unwrap();
        fs::copy(target.join(STATE_FILE), former.join(STATE_FILE)).unwrap();
        assert_eq!(save(folder.path(), &at_position(4), &[]).unwrap(), target);
        assert_eq!(found(), 4);
    }

    #[test]
    fn nothing_and_another_run_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(latest(folder.path(), &state(0).identity), Err(CheckpointError::None(_))));
        save(folder.path(), &state(1), &[]).unwrap();
        let other = Identity { seed: 2, ..state(0).identity };
        let error = latest(folder.path(), &other).unwrap_err();
        assert!(matches!(error, CheckpointError::OtherRun { field: "seed", .. }));
    }

    #[test]
    fn a_checkpoint_of_an_older_version_needs_the_same_momentum_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), &state(1), &[]).unwrap().join(STATE_FILE);
        let text = fs::read_to_string(&path).unwrap();
        let older = |form: &str| {
            let fields = format!("\"learning_rate\": 0.05, \"identity\": {{ \"momentum_form\": \"{form}\",");
            let older = text.replace("\"identity\": {", &fields);
            assert_ne!(older, text);
            fs::write(&path, older).unwrap();
            latest(folder.path(), &state(0).identity)
        };
        assert_eq!(older("outside").unwrap().1.position, 16);
        let error = older("inside").unwrap_err().to_string();
        assert!(error.contains("its momentum form is inside, this run's is outside"), "{error}");
    }
}
