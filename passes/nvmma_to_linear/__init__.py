"""The pass nvmma-to-linear: MMA operands get the generated shared-linear encoding."""
