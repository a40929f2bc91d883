//! Times until which each tenant wants a model to stay loaded. A key's request to unload concerns
//! only its own claim: the model stays while another tenant wants it.

use std::time::Instant;

/// The claims on one model.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<Claim>);

#[derive(Debug)]
struct Claim {
    tenant: u64,
    /// The tenant's requests that use the model now.
    n_users: usize,
    /// End of the claim after the last request; `None` for never.
    until: Option<Instant>,
}

impl Claims {
    /// Counts a request of `tenant`.
    pub(super) fn begin(&mut self, tenant: u64) {
        match self.0.iter_mut().find(|claim| claim.tenant == tenant) {
            Some(claim) => claim.n_users += 1,
            None => self.0.push(Claim { tenant, n_users: 1, until: None }),
        }
    }

    /// Ends a request of `tenant`, which wants the model until `until`; `None` for forever.
    pub(super) fn end(&mut self, tenant: u64, until: Option<Instant>) {
        // The server's own load at start belongs to every tenant.
        self.0.retain(|claim| claim.tenant == tenant || claim.tenant != 0 || claim.n_users > 0);
        if let Some(claim) = self.0.iter_mut().find(|claim| claim.tenant == tenant) {
            claim.n_users = claim.n_users.saturating_sub(1);
            claim.until = until;
        }
    }

    /// Ends the claim of `tenant`. Returns true if another tenant has one.
    pub(super) fn give_up(&mut self, tenant: u64, now: Instant) -> bool {
        for claim in self.0.iter_mut().filter(|claim| claim.tenant == tenant || claim.tenant == 0) {
            claim.until = Some(now);
        }
        let wants = |claim: &Claim| claim.n_users > 0 || claim.until.is_none_or(|until| until > now);
        self.0.iter().any(|claim| claim.tenant != tenant && wants(claim))
    }

    /// Time when the last claim ends if no request uses the model; `None` for never.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.iter().map(|claim| claim.until).reduce(|a, b| Some(a?.max(b?))).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_model_stays_as_long_as_the_one_that_wants_it_longest() {
        let now = Instant::now();
        let after = |seconds| Some(now + Duration::from_secs(seconds));
        let mut claims = Claims::default();
        // The server itself loads the model at its start.
        claims.begin(0);
        claims.end(0, None);
        assert_eq!(claims.until(), None);
        for (tenant, seconds) in [(1, 300), (2, 0)] {
            claims.begin(tenant);
            claims.end(tenant, after(seconds));
        }
        assert_eq!(claims.until(), after(300));
        assert!(claims.give_up(2, now) && !claims.give_up(1, now));
        assert!(claims.until().is_some_and(|until| until <= now));
        // A running request is a claim.
        claims.begin(1);
        assert!(claims.give_up(2, now) && !claims.give_up(1, now));
        // Forever is later than any time.
        claims.end(1, None);
        assert_eq!(claims.until(), None);
        assert!(claims.give_up(2, now));
    }

    #[test]
    fn without_keys_everybody_is_one_tenant() {
        let now = Instant::now();
        let mut claims = Claims::default();
        claims.begin(0);
        claims.end(0, None);
        claims.begin(0);
        assert!(!claims.give_up(0, now));
        claims.end(0, Some(now));
        assert_eq!(claims.until(), Some(now));
    }
}
