//! Requests for a job whose state is being read from the store.

use std::thread;

use evenstep_protocol::{JobSpec, JoinRequest};
use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request, join_all, worker_id};

/// Changes are refused while a load does not end. Views wait for it.
#[test]
fn a_change_does_not_wait_for_a_load_and_a_view_does() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    let first = service.client.allocate(&allocate_request("job", generation, 0));
    assert_eq!(first.status, 200);
    // SQLite waits some seconds for its lock. If the machine stands still for that long, the load fails: try again.
    let refused = until("a job is being loaded", || {
        service.kill_and_restart();
        let (client, viewer) = (&service.client, service.predictor.client());
        thread::scope(|scope| {
            let (refused, view) = service.store.without_loads(|| {
                let view = scope.spawn(|| viewer.get("/v1/jobs/job"));
                let refused = [
                    client.allocate(&allocate_request("job", generation, 1)),
                    client.post("/v1/jobs/job/workers", &JoinRequest::new(worker_id(2))),
                ];
                (refused, view)
            });
            let view = view.join().unwrap();
            let is_loading = refused.iter().all(|reply| reply.body.contains("problem:loading"));
            (is_loading && view.status == 200).then_some(refused)
        })
    });
    for reply in &refused {
        assert!(reply.problem(503, "loading").retry_after_s.is_some(), "{reply:?}");
    }
    assert_eq!(service.client.allocate(&allocate_request("job", generation, 0)).body, first.body);
    assert_eq!(service.client.job("job").live_workers, 2, "a refused worker did not join");
}
