"""The checks. Each module has `prevented(context)`, the reason why this machine cannot run it, and `check(context)`."""

#: Names of the modules, in the order of the table.
NAMES = (
    "identity",
    "agent",
    "ddp",
    "hedged",
    "compiled",
    "fsdp",
    "timing",
    "drivers",
    "overhead",
    "slowed",
    "memory",
    "killed",
    "profile",
    "verify",
    "trainer",
)
