"""Tasks drawn from image stores: alphabets, few-shot episodes, many-shot tasks."""
