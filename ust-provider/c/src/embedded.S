/* The probe's bytes, so that nothing has to be installed beside the daemon. */
	.section .rodata
	.global blkkin_probe_bytes
	.hidden blkkin_probe_bytes
	.type blkkin_probe_bytes, %object
	.global blkkin_probe_bytes_end
	.hidden blkkin_probe_bytes_end
	.type blkkin_probe_bytes_end, %object
	.balign 16
blkkin_probe_bytes:
#ifdef BLKKIN_PROBE_FILE
	.incbin BLKKIN_PROBE_FILE
#endif
blkkin_probe_bytes_end:
	.byte 0
	.size blkkin_probe_bytes, . - blkkin_probe_bytes
	.section .note.GNU-stack, "", %progbits
