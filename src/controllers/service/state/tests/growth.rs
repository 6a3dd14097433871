//! The work for many Services: passes and reports grow as their number.
//!
//! The controller of the [histories](super::histories) creates Services in batches. Work is counted, not timed: how often the
//! parts of a Service are looked up in a listing of the cloud, and how many members the passes report.
//! `CCM_TEST_SERVICES=1000 cargo test .. -- growth::creates` creates so many, so that the processor time can be measured;
//! `CCM_TEST_BATCH` is how many of them are created at the same time.

use std::sync::atomic::Ordering;

use ccm_core::testkit::seeds::requested;

use super::histories::{Process, World};

/// Services that are created at the same time.
const BATCH: usize = 10;

/// The work per Service.
#[derive(Debug)]
struct Work {
    lookups: usize,
    reported: usize,
    passes: usize,
}

/// Creates so many Services, `batch` at the same time.
fn create(count: usize, batch: usize) -> Work {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(0).silent();
        let process = Process::new(&world, None);
        let mut tasks = process.start();
        world.api.lock().set_node(0, None);
        for first in (0..count).step_by(batch) {
            for service in first..count.min(first + batch) {
                world.api.lock().apply_service(service, 80);
            }
            process.watch.notify_one();
            process.quiescent().await.unwrap();
        }
        process.check().unwrap();
        tasks.shutdown().await;
        Work {
            lookups: world.balancers.lookups() / count,
            reported: process.reported.load(Ordering::Relaxed) / count,
            passes: process.passes.load(Ordering::Relaxed) / count,
        }
    })
}

#[test]
fn creates_services_with_work_that_grows_as_their_number() {
    if let Some(count) = requested("CCM_TEST_SERVICES") {
        let batch = requested("CCM_TEST_BATCH").map_or(BATCH, |batch| usize::try_from(batch).unwrap());
        create(usize::try_from(count).unwrap(), batch);
        return;
    }
    let (few, many) = (create(100, BATCH), create(400, BATCH));
    let grows = |few: usize, many: usize| 2 * many > 3 * few;
    assert!(!grows(few.passes, many.passes), "{few:?} {many:?}");
    assert!(!grows(few.reported, many.reported), "{few:?} {many:?}");
    // All Services share one part, and a pass over it looks its members up in new listings.
    assert!(many.lookups < 80, "{few:?} {many:?}");
    let (few, many) = (create(100, 100), create(400, 400));
    assert!(!grows(few.passes, many.passes), "{few:?} {many:?}");
    assert!(!grows(few.lookups, many.lookups), "{few:?} {many:?}");
}
