//! Which accounts have a turn of the control thread, and for how long: deficit round robin in nanoseconds (Shreedhar and
//! Varghese, IEEE/ACM ToN 1996).
//!
//! In each round every account that has something to do may use [`TURN`]. A request is not interrupted, so a turn may take
//! longer. The account owes the time above its turn, and each following round pays back [`TURN`] of it: until less than a turn is
//! owed, the account has no turn. So an account whose requests are dear gets no more time than one whose requests are cheap, and
//! waits while that one is served. Time that an account does not use is not saved. If all accounts that have something to do owe
//! a turn or more, rounds are left out until one of them may go on: the control thread never waits for a debt.
//!
//! Debts belong to accounts and not to connections: a program that connects again still owes. A debt is forgotten when it has
//! been paid back, so that there are no more debts than accounts that have lately overdrawn their turns.

use burst_base::Nanos;
use burst_ledger::AccountId;
use std::collections::HashMap;

/// Time that an account may use in one round. An account that waits for its turn waits for about this long for each other
/// account, or for one request if that takes longer. The fixed cost of a round, two system calls, is about a hundredth of it.
pub const TURN: Nanos = Nanos::from_ms(1);

/// What an account owes.
#[derive(Clone, Copy, Debug)]
struct Debt {
    /// Time that is owed in `round`, its turn included: the account has no further turn in it.
    in_round: Nanos,
    /// The round in which the time was spent.
    round: u64,
}

impl Debt {
    /// What is left in a later round. Each round pays back a turn.
    fn left(&self, round: u64) -> Nanos {
        let rounds = round.saturating_sub(self.round);
        Nanos(self.in_round.0.saturating_sub(rounds.saturating_mul(TURN.0)))
    }
}

/// The rounds of the control thread, and what accounts owe.
#[derive(Debug, Default)]
pub struct Rounds {
    round: u64,
    debts: HashMap<AccountId, Debt>,
}

impl Rounds {
    /// Begins a round for the accounts `ready`, which have something to do.
    pub fn begin<'a>(&mut self, ready: impl Iterator<Item = &'a AccountId>) {
        self.round = self.round.saturating_add(1);
        let Some(least) = ready.map(|account| self.debt(account)).min() else { return };
        self.round = self.round.saturating_add(least.0 / TURN.0);
        let round = self.round;
        self.debts.retain(|_, debt| debt.left(round) > Nanos(0));
    }

    /// How long the turn of an account may take in this round; `None`: it has no turn, because it owes too much.
    pub fn turn(&self, account: &AccountId) -> Option<Nanos> {
        let debt = self.debt(account);
        (debt < TURN).then(|| TURN.since(debt))
    }

    /// Notes that `time` was spent for an account in its turn of this round, which was to take `turn` at most: see
    /// [`Rounds::turn`].
    pub fn spent_in_turn(&mut self, account: &AccountId, turn: Nanos, time: Nanos) {
        debug_assert!(Nanos(0) < turn && turn <= TURN, "no turn");
        // The turn was shortened by what was owed before: only what is above it is owed from now on.
        self.owe(account, time.since(turn));
    }

    /// Notes that `time` was spent for an account after the turns of this round.
    pub fn spent_besides(&mut self, account: &AccountId, time: Nanos) {
        let before = self.debts.get(account).map_or(Nanos(0), |debt| debt.left(self.round.saturating_add(1)));
        self.owe(account, Nanos(before.0.saturating_add(time.0)));
    }

    /// Sets what an account owes at the begin of the next round.
    fn owe(&mut self, account: &AccountId, next: Nanos) {
        if next > Nanos(0) {
            let debt = Debt { in_round: Nanos(next.0.saturating_add(TURN.0)), round: self.round };
            self.debts.insert(account.clone(), debt);
        }
    }

    fn debt(&self, account: &AccountId) -> Nanos {
        self.debts.get(account).map_or(Nanos(0), |debt| debt.left(self.round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAR: AccountId = AccountId::User(1001);
    const CHEAP: AccountId = AccountId::User(1002);

    /// Serves accounts that always have something to do for `rounds` rounds, in virtual time. A turn ends with the request after
    /// which its time is over. Returns what each has used.
    fn serve(rounds: &mut Rounds, count: u32, accounts: &[(AccountId, Nanos)]) -> Vec<Nanos> {
        let mut used = vec![Nanos(0); accounts.len()];
        for _ in 0..count {
            rounds.begin(accounts.iter().map(|(account, _)| account));
            let mut turns = 0;
            for (index, (account, request)) in accounts.iter().enumerate() {
                let Some(turn) = rounds.turn(account) else { continue };
                let time = Nanos(turn.0.div_ceil(request.0) * request.0);
                rounds.spent_in_turn(account, turn, time);
                assert_eq!(rounds.turn(account).filter(|_| time > turn), None, "one turn in each round");
                used[index] = used[index] + time;
                turns += 1;
            }
            assert!(turns > 0, "the control thread waits for nothing");
        }
        used
    }

    #[test]
    fn an_account_with_dear_requests_gets_no_more_time() {
        let mut rounds = Rounds::default();
        let requests = [(DEAR, Nanos::from_ms(70)), (CHEAP, Nanos::from_us(30))];
        let used = serve(&mut rounds, 7000, &requests);
        // At most one request ahead.
        assert!(used[0] <= used[1] + requests[0].1 && used[1] <= used[0] + requests[0].1, "{used:?}");
    }

    #[test]
    fn each_of_many_accounts_gets_the_same_time() {
        let accounts: Vec<_> = (0..20).map(|uid| (AccountId::User(uid), Nanos::from_us(7 << uid))).collect();
        let used = serve(&mut Rounds::default(), 20_000, &accounts);
        let longest = accounts.last().expect("accounts").1;
        for (time, (account, _)) in used.iter().zip(&accounts) {
            assert!(time.since(used[0]) <= longest && used[0].since(*time) <= longest, "{account}: {used:?}");
        }
    }

    #[test]
    fn a_single_account_never_waits() {
        let mut rounds = Rounds::default();
        let used = serve(&mut rounds, 100, &[(DEAR, Nanos::from_ms(70))]);
        assert_eq!(used, [Nanos::from_ms(7000)]);
    }

    #[test]
    fn no_time_is_saved_and_debts_end() {
        let mut rounds = Rounds::default();
        serve(&mut rounds, 1000, &[(DEAR, Nanos::from_us(1))]);
        assert_eq!((rounds.debts.len(), rounds.turn(&CHEAP), rounds.turn(&DEAR)), (0, Some(TURN), Some(TURN)));
        rounds.begin([&DEAR].into_iter());
        rounds.spent_in_turn(&DEAR, TURN, Nanos::from_us(3500));
        assert_eq!(rounds.turn(&DEAR), None);
        let mut turns = Vec::new();
        for _ in 0..4 {
            rounds.begin([&DEAR, &CHEAP].into_iter());
            turns.push((rounds.turn(&DEAR), rounds.turn(&CHEAP)));
        }
        let half = Some(Nanos::from_us(500));
        assert_eq!(turns, [(None, Some(TURN)), (None, Some(TURN)), (half, Some(TURN)), (Some(TURN), Some(TURN))]);
        assert!(rounds.debts.is_empty());
    }

    #[test]
    fn time_besides_turns_is_owed_too() {
        let mut rounds = Rounds::default();
        rounds.begin([&DEAR].into_iter());
        rounds.spent_besides(&DEAR, Nanos::from_us(700));
        rounds.spent_besides(&DEAR, Nanos::from_us(900));
        rounds.begin([&DEAR, &CHEAP].into_iter());
        assert_eq!(rounds.turn(&DEAR), None);
        rounds.begin([&DEAR, &CHEAP].into_iter());
        assert_eq!(rounds.turn(&DEAR), Some(Nanos::from_us(400)));
        rounds.spent_besides(&DEAR, Nanos(u64::MAX));
        rounds.spent_besides(&DEAR, Nanos(u64::MAX));
        rounds.begin([&DEAR].into_iter());
        assert!(rounds.turn(&DEAR).is_some());
    }
}
