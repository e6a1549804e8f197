"""From one operator sequence to an equal one: functionalise, fold, expand, and look through views."""
