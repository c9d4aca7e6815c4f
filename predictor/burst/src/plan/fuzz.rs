//! Fuzz test: requests and profiles with arbitrary damage are an error, or give a plan of finite numbers.

use evenstep_fuzz::{config, damaged_json};
use proptest::prelude::*;

use super::*;

const REQUESTS: [&str; 3] = [
    r#"{"global_batch":8,"gpus":4,"amplification":2.0,"exempt_below_us":10.0,"memory_bytes":100000000,"bytes_per_parameter":16.0,"network":{"bandwidth_bytes_per_s":1e9,"latency_us":5.0,"all_reduce":"tree"},"profile":{"model":"m","layers":[{"name":"a","compute_us":{"1":20.0,"8":90.0},"parameters":1000,"outputs":10,"activation_bytes":{"1":4,"8":30}},{"name":"b","inputs":["a"],"compute_us":{"1":200.0,"8":900.0},"forward_us":{"1":70.0},"parameters":10},{"name":"c","inputs":["a","b"],"compute_us":{"1":2.0}}]}}"#,
    r#"{"global_batch":8,"counts":[1,2],"speeds":[1.0,0.5],"profile":{"layers":[{"name":"a","cost_us":{"1":20.0,"2":12.0}},{"name":"b","cost_us":{"1":20.0,"2":12.0},"edge_us":{"1->2":3.0,"2->1":1.0}}]}}"#,
    r#"{"global_batch":64,"gpus":3,"profile":{"network":{"bandwidth_bytes_per_s":1e9},"layers":[{"name":"a","compute_us":{"1":20.0,"64":200.0},"outputs":7,"parameters":5}]}}"#,
];

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn any_request_has_a_plan_or_an_error(text in damaged_json(REQUESTS.map(str::to_owned).into())) {
        let Ok(request) = serde_json::from_str::<BurstRequest>(&text) else { return Ok(()) };
        match plan(&request) {
            Ok(plan) => {
                // A number that is not finite becomes null.
                let text = serde_json::to_string(&plan).unwrap();
                prop_assert!(serde_json::from_str::<BurstPlan>(&text).is_ok_and(|read| read == plan), "{}", text);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
