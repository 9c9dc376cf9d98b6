"""What every join is made of, whatever its algorithm: facts, plan, intake, output, life."""
