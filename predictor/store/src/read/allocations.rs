//! Reading allocations.

use bytes::Bytes;
use evenstep_protocol::{AllocateResponse, JobId};

use crate::database::rows;
use crate::encode::{Json, integer};
use crate::error::StoreError;
use crate::store::Store;
use crate::view::ALLOCATION;

/// A stored allocation.
#[derive(Debug)]
pub struct StoredAllocation {
    /// The position of its iteration.
    pub iteration: u64,
    /// The generation in which it was planned.
    pub generation: u64,
    /// The response (JSON), byte for byte.
    pub answer: Bytes,
}

impl StoredAllocation {
    /// Parses the response. Its iteration is the position, as everywhere inside the predictor.
    ///
    /// # Errors
    /// If the stored JSON is invalid.
    pub fn parse(&self) -> Result<AllocateResponse, StoreError> {
        let answer = serde_json::from_slice(&self.answer);
        let answer: AllocateResponse =
            answer.map_err(|source| StoreError::Corrupt { what: "answer", source })?;
        Ok(AllocateResponse { iteration: self.iteration, ..answer })
    }
}

/// The allocations of a range of iterations, each from its latest generation.
pub(crate) const ANSWERS: &str = "SELECT iteration, generation, answer FROM allocation AS this
    WHERE job_id = $1 AND iteration >= $2 AND iteration < $3
      AND NOT EXISTS (SELECT 1 FROM allocation AS later WHERE later.job_id = this.job_id
                      AND later.iteration = this.iteration AND later.generation > this.generation)
    ORDER BY iteration";

/// The times of the allocations that hold from an iteration on, in order: the latest up to it, and all later ones.
pub(crate) const TIMES: &str = "SELECT MAX(at_unix_ms), iteration FROM allocation
    WHERE job_id = $1
      AND iteration >= COALESCE((SELECT MAX(iteration) FROM allocation WHERE job_id = $1 AND iteration <= $2), $2)
      AND iteration <= (SELECT MAX(iteration) FROM allocation WHERE job_id = $1)
    GROUP BY iteration ORDER BY 1, 2";

/// The allocation of a row.
pub(crate) fn stored((iteration, generation, answer): (i64, i64, Json)) -> StoredAllocation {
    StoredAllocation {
        iteration: iteration.cast_unsigned(),
        generation: generation.cast_unsigned(),
        answer: answer.0.into(),
    }
}

impl Store {
    /// Returns the allocation of an iteration in its latest generation.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn answer(
        &self,
        job_id: &JobId,
        iteration: u64,
    ) -> Result<Option<StoredAllocation>, StoreError> {
        let answers = self.answers(job_id, iteration, 1).await?;
        Ok(answers.into_iter().next())
    }

    /// Returns the allocation of an iteration, or of the latest one before it that has one, in its latest generation.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn answer_until(
        &self,
        job_id: &JobId,
        iteration: u64,
    ) -> Result<Option<StoredAllocation>, StoreError> {
        type Row = (i64, i64, Json, i64);
        let answers = rows!(&self.readers, Row, ALLOCATION, job_id.as_str(), integer(iteration))?;
        let answer = |(iteration, generation, answer, _)| stored((iteration, generation, answer));
        Ok(answers.into_iter().next().map(answer))
    }

    /// Returns the times of the allocations that hold from iteration `from` on, in milliseconds since 1970, with their iterations,
    /// in order of these times.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn allocation_times(&self, job_id: &JobId, from: u64) -> Result<Vec<(i64, u64)>, StoreError> {
        let times = rows!(&self.readers, (i64, i64), TIMES, job_id.as_str(), integer(from))?;
        Ok(times.into_iter().map(|(at_unix_ms, iteration)| (at_unix_ms, iteration.cast_unsigned())).collect())
    }

    /// Returns the allocations of up to `limit` iterations from iteration `from`, each from its latest
    /// generation.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn answers(
        &self,
        job_id: &JobId,
        from: u64,
        limit: u64,
    ) -> Result<Vec<StoredAllocation>, StoreError> {
        let answers = rows!(
            &self.readers,
            (i64, i64, Json),
            ANSWERS,
            job_id.as_str(),
            integer(from),
            integer(from.saturating_add(limit)),
        )?;
        Ok(answers.into_iter().map(stored).collect())
    }
}
