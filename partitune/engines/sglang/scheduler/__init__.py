"""SGLang's scheduler and pipeline loop in virtual time."""
