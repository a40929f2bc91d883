//! The tenant of a request: one of several clients that share no cached prefixes and each get their
//! part of the machine.

tokio::task_local! {
    static TENANT: u64;
}

/// The tenant whose request this task answers. Models and caches look it up. 0 outside of
/// requests of tenants.
pub fn tenant() -> u64 {
    TENANT.try_with(|tenant| *tenant).unwrap_or(0)
}

/// Answers a request of a tenant.
pub async fn of_tenant<T>(tenant: u64, answer: impl Future<Output = T>) -> T {
    TENANT.scope(tenant, answer).await
}
