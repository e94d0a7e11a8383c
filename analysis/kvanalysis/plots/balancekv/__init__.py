"""The figures and theorems of BalanceKV."""
