"""What a conversation's tool calls came to, read without a model: outcomes, file changes, attempts, what runs, plans.

A call and its result (`calls`) are judged once (`outcomes`, by the tables of `outcome_words` and `outcome_lines`); what
they did to files (`files`, by `tools`, `shell`, `shell_files`, `scripts` and `patches`), what was tried in vain
(`attempts`), what still runs (`running`) and what is planned (`todo`, `plan_forms`) is read off the judged calls.
Nothing here is guessed: what a result does not show is not known.
"""
