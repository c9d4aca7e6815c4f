use proptest::prelude::*;

use super::*;

/// Curves of all shapes, steep and flat.
fn curves() -> impl Strategy<Value = Curve> {
    let fixed = prop_oneof![Just(0.0), 0.0f64..1.0];
    let ramp = (fixed, prop_oneof![Just(0u64), 1u64..5000], 1e-6f64..1.0)
        .prop_map(|(base, saturation, per_sample)| Curve::saturating(base, saturation, per_sample));
    let points = prop::collection::vec((1u64..5000, 1e-3f64..10.0), 1..8)
        .prop_map(|points| Curve::through(&points).unwrap());
    (prop_oneof![ramp, points], prop::option::of(1u64..300), 0.1f64..10.0).prop_map(
        |(curve, micro, factor)| {
            let curve = curve.scaled(factor);
            match micro {
                Some(micro) => curve.accumulating(micro),
                None => curve,
            }
        },
    )
}

proptest! {
    #[test]
    fn batch_within_is_the_inverse_of_time(curve in curves(), time in 0.0f64..100.0, most in 0u64..1_000_000) {
        let batch = curve.batch_within(time, most);
        prop_assert!(batch <= most);
        prop_assert!(batch == 0 || curve.time(batch) <= time);
        prop_assert!(batch == most || curve.time(batch + 1) > time);
    }

    /// At the exact time of a batch, where the division can round up or down.
    #[test]
    fn the_edge_belongs_to_the_batch(curve in curves(), batch in 1u64..1_000_000) {
        let time = curve.time(batch);
        let last = curve.batch_within(time, 2_000_000);
        prop_assert!(last >= batch && curve.time(last) == time);
        let before = curve.batch_within(time.next_down(), 2_000_000);
        prop_assert!(before < batch && (before == 0 || curve.time(before) < time));
    }

    #[test]
    fn curves_never_fall(curve in curves(), batch in 0u64..20_000) {
        prop_assert_eq!(curve.time(0), 0.0);
        prop_assert!(curve.time(batch) <= curve.time(batch + 1));
        prop_assert!(curve.time(batch) <= curve.time_of(batch as f64 + 0.5));
        prop_assert!(curve.time(batch).is_finite());
    }

    #[test]
    fn scaling_scales_every_time(curve in curves(), factor in 0.01f64..100.0, batch in 1u64..20_000) {
        let scaled = curve.clone().scaled(factor).time(batch);
        let expected = factor * curve.time(batch);
        prop_assert!((scaled - expected).abs() <= 1e-9 * expected);
    }
}

/// Computed by hand, in powers of two.
#[test]
fn golden_times() {
    let at = |curve: &Curve, batches: [u64; 5]| batches.map(|batch| curve.time(batch));
    assert_eq!(at(&Curve::linear(0.5, 0.25), [0, 1, 2, 4, 8]), [0.0, 0.75, 1.0, 1.5, 2.5]);
    let gpu = Curve::saturating(2.0, 4, 0.5);
    assert_eq!(at(&gpu, [0, 1, 4, 5, 8]), [0.0, 2.0, 2.0, 2.5, 4.0]);
    assert_eq!(at(&gpu.accumulating(8), [4, 8, 9, 13, 16]), [2.0, 4.0, 6.0, 6.5, 8.0]);
    let measured = Curve::through(&[(8, 3.0), (4, 2.0), (16, 8.0)]).unwrap();
    // The first line reaches 0 samples at 1 s; the last line continues beyond its end.
    assert_eq!(at(&measured, [2, 4, 6, 12, 24]), [1.5, 2.0, 2.5, 5.5, 13.0]);
    assert_eq!(at(&Curve::through(&[(4, 2.0)]).unwrap(), [1, 2, 4, 8, 0]), [0.5, 1.0, 2.0, 4.0, 0.0]);
}

#[test]
fn points_that_make_no_curve_are_named() {
    assert_eq!(Curve::through(&[]), Err(PointsError::Count(0)));
    assert_eq!(Curve::through(&[(1, 1.0); 65]), Err(PointsError::Count(65)));
    let error = Curve::through(&[(1, 1.0), (0, 2.0)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "point with batch 0 and time 2 s is invalid; the batch must be at least 1, and the time positive and finite"
    );
    assert!(Curve::through(&[(1, f64::NAN)]).is_err());
}
