"""The emulated GPU: instructions, registers, memory and waves."""
